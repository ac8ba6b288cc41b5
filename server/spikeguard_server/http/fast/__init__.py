"""What answers the one call that comes hundreds of times a second, before the framework is asked.

Exists for speed alone. Start at `ingest_middleware`.
"""
