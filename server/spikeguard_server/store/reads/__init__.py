"""What the API shows, read from the tables: one module a subject. Nothing here writes."""
