"""A first look, for marimo: `marimo edit first_look_marimo.py`, or `marimo export html`."""

import marimo

app = marimo.App()


@app.cell
def _():
    import torch
    from torch import nn

    import torchtally

    return nn, torch, torchtally


@app.cell
def _(nn, torch):
    def train():
        model = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(100):
            x = torch.randn(8192, 4096, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return (train,)


@app.cell
def _(torchtally, train):
    trace = torchtally.run(train, gpu="H100-SXM", steps=2)
    ledger = torchtally.account(trace, roofline=torchtally.roofline("H100-SXM"))
    ledger
    return ledger, trace


@app.cell
def _(ledger, torchtally):
    torchtally.by(ledger, "op")
    return


@app.cell
def _(ledger):
    product = 2 * 8192 * 4096 * 16384  # a multiply and an add for each (token, in, out)
    assert ledger.total.flops_matmul == 2 * product + (2 * 2 - 1) * product  # x needs no gradient
    return


@app.cell
def _(torchtally):
    torchtally.tally("plan llama-3-8b --gpus 8xH100-SXM --micro-batch 1")
    return


if __name__ == "__main__":
    app.run()
