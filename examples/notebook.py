"""torchtally as a library, cell by cell: open it in an editor that knows `# %%`, or just run it."""

# %% A GPU that is not there
# Within the block, "cuda" is a simulated H100. Tensors have shapes, dtypes and devices; small ones
# have values, too.

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtally

with torchtally.virtual_gpu("H100-SXM") as gpu:
    print(torch.cuda.get_device_name(), torch.cuda.is_bf16_supported())
    a = torch.randn(32, 32, device="cuda")
    b = torch.randn(32, 32, device="cuda")
    print(gpu.allocated_bytes, torch.cuda.memory_allocated())  # 2 * 32 * 32 * 4 = 8192, both

    w = torch.tensor([1.0, 1.0, 1.0], device="cuda", requires_grad=True)
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    (w * x).sum().backward()
    print(w.grad)  # real, since everything it comes from is: [1, 2, 3]

print(torch.cuda.is_available())  # outside, torch is as it was

# %% A model, and three training steps in bf16, written as one would for a real GPU

LAYERS, WIDTH, TOKENS = 8, 4096, 16384


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        hidden = nn.functional.gelu(hidden)
        return x + self.down(hidden)


class Tower(nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


def train(recompute: bool = False) -> None:
    model = Tower(recompute).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        x = torch.randn(TOKENS, WIDTH, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# %% Trace it: what happened, as facts
# `steps=2` ends the run at the second optimizer step: the first one makes the optimizer's state,
# the second is like all that follow.

trace = torchtally.run(train, gpu="H100-SXM", steps=2)
print(len(trace.ops), "operators,", len(trace.storages), "storages,", len(trace.step_ends), "steps")

# %% Account for it: what the facts cost
# A ledger is a pure function of the trace. Its total is one steady-state step.

ledger = torchtally.account(trace)
ledger.check()  # raises unless every view sums to the total
product = 2 * TOKENS * WIDTH * (4 * WIDTH)  # a multiply and an add for each (token, in, out)
forward, backward = LAYERS * 2 * product, LAYERS * 2 * 2 * product  # up, down; two gradients each
print(ledger.total.flops_matmul == forward + backward, ledger.total.flops)

# %% Look at it from any side: a view is a table of plain numbers

print(ledger)
print(torchtally.by(ledger, "op").top(5))
lines = torchtally.by(ledger, "line").sorted_by("bytes_saved")
print(lines.column("line")[0], "saves most for backward:", lines.column("bytes_saved")[0], "bytes")

# %% Ask a what-if: how much memory does recomputation give back, and what does it cost?

chip = torchtally.chip("H100-SXM")
for recompute in (False, True):
    what_if = torchtally.account(
        torchtally.run(lambda choice=recompute: train(choice), gpu=chip, steps=2)
    )
    step_flops, peak_bytes = what_if.total.flops, what_if.memory.peak_bytes
    print(f"{recompute=}: {step_flops / 1e12:.1f} TFLOPs a step, {peak_bytes / 2**30:.2f} GiB")

# %% Keep it: the file opens without torch, here or with `tally show train.tally --by module`

trace.save("train.tally")
assert torchtally.Trace.load("train.tally") == trace
