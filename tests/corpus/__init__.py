"""Scripts that people run, and features they use, with the figures that a report must show.

    python -m tests.corpus                           # all that this environment can run
    python -m tests.corpus --checkouts DIR --write   # also repositories' files; keeps the score
    python -m tests.corpus --only mnist vae          # some of them
    python -m tests.corpus --checkouts DIR --count   # counts what is not summed by hand

A case is right when the run ends as it should and its report has the expected parameters, the
expected FLOPs and the expected step. The expected figures are sums by hand, or what PyTorch's own
FlopCounterMode counts while the same script really runs on the CPU (`on_host.py`).

`make test` runs the cases that need nothing but what this project is tested with.
"""
