"""The lives of incidents and commands: one table of legal moves each. Start at `command_life`."""
