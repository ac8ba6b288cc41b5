"""Where the loop stands in the data order, what it skips, and the record of what was skipped.

Owns positions; the loader stays the user's. Start at `feed`.
"""
