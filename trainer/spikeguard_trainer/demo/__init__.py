"""The whole story in one terminal: a real run, a real spike, a real recovery.

Starts the server and its dashboard, trains the reference model with a fault at a known step, tells
what happens as it happens, approves after a pause, and shows the post-mortem. It talks to the
server only as a person would, through the HTTP API.
"""
