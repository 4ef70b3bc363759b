"""What torchtally costs, measured beside a peer in the same run. See README.md."""
