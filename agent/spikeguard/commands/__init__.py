"""From an order to the act, between two steps, on all ranks. Start at `orders`, then `executor`."""
