"""spikeguard in loops that a framework brings: one module a framework, and what they share.

Law: nothing here is imported by the rest of the agent, so no framework is ever loaded unasked.
"""
