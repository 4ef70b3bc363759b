"""Ways to publish, tried with the clients themselves against a server of this machine.

`python -m tests.isolation.clients --uv UV` installs them into a throw-away environment and runs
`ways.py` twice: as it is, which shows that a way reaches the server, and under `tally run`.
"""
