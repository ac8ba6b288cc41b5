"""Detection offline: reads a training log, runs the server's detection over it, lists or draws it.

Needs numpy and no server, database or network; nothing is ever done to the run.
"""
