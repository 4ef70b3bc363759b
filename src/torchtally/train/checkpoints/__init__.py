"""Checkpoints: the complete state of a training on disk, either whole or absent.

    disk         an open directory, and files flushed to disk
    manifest     the contents of a checkpoint with checksums; written last
    shard        a file of safetensors, written and checked
    folder       the checkpoints of a run: begin, commit, prune, set aside
    storage      torch.distributed.checkpoint's writer and reader over these
    snapshot     copies on the host, unaffected by the next step
    randomness   states of random generators as tensors
    state        a trainer as tensors and plain data, and back
    packing      state dicts as tensors and plain data, and back
    objects      the state of a loop's own objects, likewise
    saver        saving in the background
    resume       the newest whole checkpoint, if it belongs to this training

No pickle is written or read, and reading executes no code.
"""
