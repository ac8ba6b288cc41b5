"""The whole story in one terminal: a real run, a real spike, a real recovery. It talks to the
server only as a person would, through the HTTP API.
"""
