"""A server and training jobs as real processes on this machine, for the demo, the end-to-end tests
and the benchmarks.
"""
