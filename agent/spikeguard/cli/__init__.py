"""`spikeguard sync` and `journal`: a run's directory while no job runs. Imports no torch."""
