"""Training on many chips: what a layout holds, sends and takes, and which layout is the fastest."""
