"""Which rank holds which part of the model, and how the agent's ranks reach one another.

Owns the one description of the job's layout, from which norms, votes and snapshots derive, and
the agent's own process group. Knows nothing of steps or orders. Start at `layout`.
"""
