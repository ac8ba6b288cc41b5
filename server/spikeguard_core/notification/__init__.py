"""Whether a channel is notified of something: topics, rules, quiet hours. Start at `delivery`."""
