"""What happens at a step boundary, and in which order ranks come to it.

Owns the hooks in the loop, the vote of the ranks, the hand-over of a step's row to the outbox, the
attempt's begin and end. `spikeguard.guard` calls it. Start at `context`, then `exchange`.
"""
