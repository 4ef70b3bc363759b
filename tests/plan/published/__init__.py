"""What others published, held against the closed forms of `torchtally.plan`."""
