"""Everything a run goes back to: snapshots in host memory, checkpoints on disk, their budget.

Owns the bytes and where they lie. Decides nothing: `commands.recovery` saves and restores.
Start at `training_state`, then `snapshots` and `checkpoints`.
"""
