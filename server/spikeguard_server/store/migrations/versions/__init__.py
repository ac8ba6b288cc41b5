"""One module a revision of the schema, in the order of their numbers."""
