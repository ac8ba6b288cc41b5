"""Every table of the database, and nothing about what is done with them. Start at `core`."""
