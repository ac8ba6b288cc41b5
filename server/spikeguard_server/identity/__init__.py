"""Who may call what, and who acted: one table, checked without a database.

Start at `permissions`.
"""
