"""What writes messages fast and exists for speed alone: prepared statements in one round trip.

Start at `fast_path`.
"""
