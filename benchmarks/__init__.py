"""Every figure that the README states, one command each: `python -m benchmarks.NAME`.

`--quick` takes under a minute, `--json` prints one JSON object.
"""
