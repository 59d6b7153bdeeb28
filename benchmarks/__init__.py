"""Measurements of what the design promises, each beside a peer in the same run. `python -m benchmarks --list`."""
