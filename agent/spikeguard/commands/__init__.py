"""From an order of the server to the act: where it waits, whether it may, how it is carried out.

Owns inbox, limits, the journal and the acts themselves; each act happens between two
steps, on all ranks. Talks to no network. Start at `orders`, then `executor`.
"""
