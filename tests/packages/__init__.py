"""Popular packages, imported beside a small training: under `tally run` a script that imports one
exits as it does alone, and prints the same.

`python -m tests.packages [NAME...]` installs each into an environment of its own and tries it; with
--write, results.json keeps what it gave. `make test` tries those that are installed here.
"""
