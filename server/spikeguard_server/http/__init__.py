"""The HTTP layer: the application, endpoints that parse, call and return, the response bodies.

No SQL and no decision here. What a call may do stands in `identity.permissions`, what it reads in
`store.reads`, what it changes in `ingest` and `access.grants`. Start at `app`.
"""
