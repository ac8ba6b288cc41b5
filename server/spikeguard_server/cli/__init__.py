"""The server's commands of `spikeguard`: up, serve, migrate, token, policy.

Owns processes and files of this machine: child processes, the embedded Postgres, sockets. What a
command does to the record is done by `access` and `store`. Start at `commands`.
"""
