"""Reference pages made from the code: `python -m benchmarks.reference` writes docs/reference anew.

Invariants: no page holds a list of its own. What a page says of an entry stands beside that entry
in the code; an entry without words is an error here.
"""
