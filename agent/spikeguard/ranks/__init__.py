"""What the ranks hold, and what they decide together. Start at `layout`, then `agreement`."""
