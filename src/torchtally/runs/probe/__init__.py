"""One run of a script for its memory alone: no operator is recorded, so it is fast."""
