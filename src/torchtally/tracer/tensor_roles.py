"""What tensors are for, as far as the script itself says: parameters, buffers, gradients."""

from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.trace import Role
from torchtally.tracer.by_hand import changed_numbers
from torchtally.tracer.modules import named_tensors
from torchtally.tracer.storage_records import StorageRecords
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import VirtualStorage, virtual_of


class TensorRoles:
    """Roles and names that tensors give to their storages."""

    def __init__(self, storages: StorageRecords) -> None:
        self.is_one_of_many = False
        """The run is one rank of several: a parameter that a backward pass meets first, and no
        module or optimizer has, is one that was gathered from its shards."""
        self.trained: set[int] = set()
        """Parameters that an optimizer has, that got a gradient, or that a script updates."""
        self.trainable: set[int] = set()
        """Parameters that require grad: what is trained, in a run that trains nothing."""
        self._storages = storages
        self._roots_seen: set[tuple[int, int]] = set()

    def mark(self, tensor: Tensor, role: Role, name: str = "") -> None:
        """Give a tensor's storages a role and a name; the first of each stays.

        There is one, or those of the tensors that a wrapper subclass holds.
        """
        whole_elements = private.whole_elements(tensor) if self.is_one_of_many else 0
        for plain in private.tensors_inside(tensor):
            virtual = virtual_of(plain)
            if virtual is None or virtual.number < 0:
                continue
            if self.mark_storage(virtual, role) is role and name:
                self._storages.names.setdefault(virtual.number, name)
            if whole_elements:
                self._storages.whole_elements[virtual.number] = whole_elements

    def mark_storage(self, storage: VirtualStorage, role: Role) -> Role:
        """Give one storage a role, unless it has one; which it has now."""
        return self._storages.roles.setdefault(storage.number, role)

    def mark_trained(self, parameter: Tensor) -> None:
        """A parameter that requires grad."""
        self.mark(parameter, Role.PARAMETER)
        for plain in private.tensors_inside(parameter):
            virtual = virtual_of(plain)
            if virtual is not None:
                self.trained.add(virtual.number)

    def mark_tensors_of(self, module: nn.Module, step: int) -> None:
        """Mark parameters and buffers of an outermost module, once a step."""
        root = (id(module), step)
        if root in self._roots_seen:
            return
        self._roots_seen.add(root)
        if self.is_one_of_many:
            for flat in private.flat_parameters(module):
                self.mark(flat, Role.PARAMETER)
        for name, tensor, is_parameter in named_tensors(module):
            if self.is_one_of_many and (shard := private.shard_of(tensor)) is not None:
                self._mark_shard(*shard, is_trained=tensor.requires_grad)
                continue
            self.mark(tensor, Role.PARAMETER if is_parameter else Role.BUFFER, name)
            virtual = virtual_of(tensor)
            if is_parameter and tensor.requires_grad and virtual is not None:
                self.trainable.add(virtual.number)

    def _mark_shard(self, shard: Tensor, elements: int, *, is_trained: bool) -> None:
        """Mark what stays of a parameter whose data come and go, by the whole's elements."""
        self.mark(shard, Role.PARAMETER)
        virtual = virtual_of(shard)
        if virtual is not None and virtual.number >= 0:
            self._storages.shard_added(virtual.number, int(shard.storage_offset()), elements)
            if is_trained:
                self.trained.add(virtual.number)

    def is_gathered(self, parameter: Tensor) -> bool:
        """Whether it was gathered from its shards."""
        virtual = virtual_of(parameter)
        if not self.is_one_of_many or virtual is None:
            return False
        if private.shard_of(parameter) is not None:
            return True
        return self._storages.roles.get(virtual.number) is not Role.PARAMETER

    def is_update(self, invocation: Invocation) -> bool:
        """Whether it is a hand-written update: it reads a gradient, or writes to a parameter."""
        roles = self._storages.roles
        return any(roles.get(n) is Role.PARAMETER for n in changed_numbers(invocation)) or any(
            roles.get(number) is Role.GRADIENT for number in invocation.numbers
        )
