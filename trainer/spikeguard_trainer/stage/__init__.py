"""A server and training jobs as real processes on this machine.

The demo, the end-to-end tests and the benchmarks all stand on it. Everything here goes through
the command line and the HTTP API, as a user would.
"""
