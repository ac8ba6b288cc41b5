"""The endpoints: each parses, calls and returns. All of them stand in `all_routes`."""
