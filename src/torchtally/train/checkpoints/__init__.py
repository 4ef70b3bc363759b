"""Checkpoints: a training's whole state on the disk, whole or not there at all.

    disk         a directory held open, and files that are on the disk
    manifest     what a checkpoint says of itself, with checksums; written last
    shard        a file of safetensors, written and checked
    folder       a run's checkpoints: begun, committed, pruned, set aside
    storage      torch.distributed.checkpoint's writer and reader over these
    snapshot     copies on the host that the next step does not change
    randomness   states of random generators as tensors
    state        a trainer as tensors and plain data, and back
    saver        saving in the background
    resume       the newest that is whole, and whether it is of this training

No pickle is written or read, and reading runs no code.
"""
