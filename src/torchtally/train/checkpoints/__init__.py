"""What a checkpoint has of `tally train`, in files of the room `checkpoints`.

state        a trainer as tensors and plain data, and back
resume       the newest whole checkpoint, if it belongs to this training
"""
