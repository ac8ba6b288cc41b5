"""What happens at a step boundary, in which order. Start at `context`, then `exchange`."""
