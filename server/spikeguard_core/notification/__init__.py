"""Whether a channel is notified of something: topics, rules. Start at `delivery`."""
