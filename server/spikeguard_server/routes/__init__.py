"""The HTTP face: endpoints that parse, call and return, and the shapes that travel.

Law: no SQL and no decision here. What a call may do stands in `access.TABLE`, what it reads in
`repository`, what it changes in `ingest` and `grants`.
"""
