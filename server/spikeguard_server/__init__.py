"""The server: takes messages, detects, names, proposes, and lets people decide.

A functional core (`domain`, `report`) in a thin shell: `routes` call `ingest`, `ingest` runs one
transaction a message through the domain and the `repository`, the `ticker` does what time does.
"""
