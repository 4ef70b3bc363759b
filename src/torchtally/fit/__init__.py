"""The largest value of a script's argument that fits: a search by simulated runs."""
