"""The data order: where the loop stands in it, and what it leaves out. Start at `feed`."""
