"""The endpoints: each parses, calls and returns. `app` includes all of them."""
