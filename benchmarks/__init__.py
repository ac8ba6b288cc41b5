"""Every figure that README and docs state, one command each: `python -m benchmarks.NAME`.

`--quick` takes under a minute, `--json` prints one JSON object.
"""
