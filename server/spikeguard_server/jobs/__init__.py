"""Work that time drives: tickers with their housekeeping, figures; and how post-mortems are drawn.

Each may run on several replicas at once. Must not know HTTP. Start at `ticker`.
"""
