"""What is replaced in torch: contexts that nest, fail, or find their stand-in gone."""

from types import SimpleNamespace

import pytest

from torchtally.virtual.stand_ins import StandIn, active, apply, native_methods, suspend


class Base:
    def item(self) -> str:
        return "torch's"


class Owner(Base):
    def size(self) -> str:
        return "torch's"


def replaced() -> list[StandIn]:
    """`item` is inherited: the class has none of its own until it is replaced."""
    return [StandIn(Owner, name, lambda self: "ours") for name in ("size", "item")]


def answers() -> list[str]:
    return [Owner().size(), Owner().item()]


def test_the_session_is_suspended_where_a_class_has_its_own_methods() -> None:
    with apply(replaced()):
        with native_methods(Owner):
            with suspend():
                assert answers() == ["torch's"] * 2
                assert not active()
            assert answers() == ["torch's"] * 2  # as before it
            with native_methods(Owner, native=False):
                assert answers() == ["ours"] * 2
            assert answers() == ["torch's"] * 2
        assert answers() == ["ours"] * 2
    assert answers() == ["torch's"] * 2
    assert "item" not in vars(Owner)


def test_what_a_script_has_deleted_or_closed_keeps_nothing_else_in_place() -> None:
    class Closed(SimpleNamespace):
        is_closed = False

        def __setattr__(self, name: str, value: object) -> None:
            if self.is_closed:
                raise AttributeError(name)
            super().__setattr__(name, value)

    closed = Closed(answer="torch's")
    with (  # noqa: PT012 (the block's end is what raises)
        pytest.raises(AttributeError, match="answer"),
        apply([*replaced(), StandIn(closed, "answer", "ours"), StandIn(closed, "new", "ours")]),
    ):
        del Owner.item, closed.new
        Closed.is_closed = True
    assert answers() == ["torch's"] * 2
    assert not active()


def test_a_failure_within_leaves_torch_as_it_was() -> None:
    with pytest.raises(KeyError), apply(replaced()), native_methods(Owner), suspend():
        raise KeyError
    assert answers() == ["torch's"] * 2
    assert not active()
