"""spikeguard in loops that a framework brings: one module a framework, and what they share."""
