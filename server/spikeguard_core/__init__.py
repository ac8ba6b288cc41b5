"""What a spike is, why it came, what to do, and which moves are legal: pure, on numpy alone.

Server, log reader and tests use it. It has no clock, no I/O and no randomness.
"""
