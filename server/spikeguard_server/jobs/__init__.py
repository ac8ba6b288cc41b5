"""Work that time drives: tickers, housekeeping, post-mortems that are due.

Each may run on several replicas at once. Must not know HTTP. Start at `ticker`.
"""
