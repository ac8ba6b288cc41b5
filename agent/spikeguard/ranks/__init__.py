"""What the ranks hold, and what they decide together.

Owns the one description of the job's layout, from which norms, votes and snapshots derive; the
agent's own process group; and the vote of every step. Knows nothing of orders. Start at `layout`,
then `agreement`.
"""
