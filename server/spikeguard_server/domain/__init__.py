"""The pure core: detection, diagnosis, policy, and the states of incidents and commands.

Law: standard library, numpy and the protocol only. No clock (it is given `now`), no I/O, no
randomness. The server runs it inside one transaction a message; `spikeguard replay` runs the very
same code over a file.
"""
