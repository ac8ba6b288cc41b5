"""spikeguard in loops that a framework brings: one module a framework, which imports it.

Law: nothing here is imported by the rest of the agent, so no framework is ever loaded unasked.
"""
