"""What an incident is: its kind, its forecast, its evidence and its causes.

Must not know what is proposed. Start at `classifier`, and at `cause.ranking`.
"""
