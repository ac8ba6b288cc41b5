"""Detection offline: reads a log, runs the server's own domain over it, lists or draws the result.

Law: no server, no database, no network, and it never acts.
"""
