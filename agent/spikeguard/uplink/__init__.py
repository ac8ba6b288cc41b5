"""The way to the server: what waits on disk, the thread that sends it, what a full disk costs.

Owns the files of unsent messages and every HTTP call of a job. The training loop waits for none
of it. Start at `outbox`, then `sender`.
"""
