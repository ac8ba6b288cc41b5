"""What waits for the server, and who sends it; the loop waits for none. Start at `outbox`."""
