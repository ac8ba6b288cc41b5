"""Work that time drives: tickers, housekeeping, post-mortems that are due; and how those are drawn.

Each may run on several replicas at once. Must not know HTTP. Start at `ticker`.
"""
