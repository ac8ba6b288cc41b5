"""All SQL of the server, one module for each subject.

Functions take an open connection and never commit; the caller owns the transaction, and where a run
changes it holds that run's lock. Nothing here decides: rows in, values out.
"""
