"""What stands around the optimizers' steps. Start at `update_skipper`."""
