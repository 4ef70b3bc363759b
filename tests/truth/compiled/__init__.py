"""What `torch.compile` really does on a GPU: recorded on PyTorch's CUDA build, without a GPU.

Dynamo, AOTAutograd, inductor, Triton with its ptxas, and the caching allocator are real; the
stand-in for the driver (`tests/truth/driver`) says that a device is there. A case (`cases.py`) is
a few training steps. Written down are the rows of inductor's scheduler, the operands of every
launch and the memory allocated at each, graph breaks, recompilations, and the private pools of
CUDA graphs; `corpus.py` describes the file. To record it anew:

    python3 -m venv CUDA && CUDA/bin/pip install torch==2.13.0 transformers numpy # 5 GB
    python -m tests.truth.compiled --python CUDA/bin/python --write           # a quarter of an hour

A case runs twice. *Warm*, as a script does that was run before: no kernel is timed. This is what
the virtual GPU is held to, byte for byte. *Cold*, with empty caches: Triton compiles every kernel
and inductor times it, in memory that it asks for (a buffer to flush the L2 cache, copies of what
a kernel overwrites). What that leaves in the allocator is recorded too: between the two runs lies
what `reserved` may be. That both launch the same kernels on the same operands is checked while
recording.

`record.py` is both sides' part, `real.py` and `virtual.py` are theirs, and `compare.py` says what
differs. What the stand-in cannot know is what a measurement decides: `corpus.ASSUMPTIONS` says
what is assumed.
"""
