"""Models to train: a deep linear one to count by hand, and decoders from 1M to 70B parameters."""
