"""From a diagnosis to a proposal: remedies, targets, skips, cost, approval.

Start at `rules`, which are asked in order, and at `remedies`, the table by cause.
"""
