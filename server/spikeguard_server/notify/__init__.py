"""Notifications: delivers what is in the outbox to channels, at least once, in order.

After the fact and beside everything else: nothing here can hold up a message of a run, a decision
or the ticker. `notifier` decides, the kinds of channels only carry.
"""
