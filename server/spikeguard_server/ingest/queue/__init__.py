"""Who is served next among many senders. Exists for fairness under load alone.

Start at `fair_queue`.
"""
