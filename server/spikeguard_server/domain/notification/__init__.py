"""Whether a channel is told of something: topics, rules, quiet hours. Start at `delivery`."""
