"""What `torch.compile` really does on a GPU: recorded on PyTorch's CUDA build, without a GPU.

Dynamo, AOTAutograd, inductor and the caching allocator are real; the stand-in for the driver
(`tests/truth/driver`) says that a device is there. A case is written down as the rows of inductor's
scheduler, the operands of every launch, and the memory allocated at each. `record.py` does that on
either side, `compare.py` says what differs, and

    python -m tests.truth.compiled --python PYTHON_WITH_CUDA_BUILD --write

records the corpus anew. What the stand-in cannot know is what a measurement decides: kernels that
inductor would time (`max-autotune`, padding of products) are left as they are by default.
"""
