"""What a GPU says of its memory, measured; and what the simulation says of the same code."""
