"""What a run goes back to, and where its bytes lie. Start at `training_state`."""
