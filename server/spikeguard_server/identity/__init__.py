"""Who may call what, and who did something: one table, judged without a database.

Start at `permissions`.
"""
