"""The server: stores messages, detects spikes, proposes commands, and lets people decide.

A functional core (`domain`, `report`) in a thin shell: `http` calls `ingest`, which runs one
transaction a message through the domain and the `store`; `jobs` do what time does.
"""
