"""The fast path of `POST /v1/messages`, answered before the framework is asked.

Exists for speed alone. Start at `ingest_middleware`.
"""
