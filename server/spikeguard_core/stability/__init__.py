"""How a run fares over thousands of steps: its stability score, and what grows slowly."""
