"""When a signal leaves its baseline. Start at `baseline`, then `loss_test`."""
