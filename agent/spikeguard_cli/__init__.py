"""The `spikeguard` command line. Standard library and protocol only."""
