"""The agent's part of the `spikeguard` command: `sync` and `journal`.

Owns what a person does with a run's directory while no job runs. Imports no torch.
"""
