"""Run an unmodified PyTorch training script on a GPU that is not there, accounted line by line."""
