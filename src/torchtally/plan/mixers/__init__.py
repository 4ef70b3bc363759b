"""Mixers whose memory of a sequence does not grow with it: one file each, all of one shape."""
