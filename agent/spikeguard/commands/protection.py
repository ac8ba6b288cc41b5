"""What the server protects, as it said last: the next attempt knows before it has spoken again.

`DIR/protected.json`: names of snapshots and checkpoints. Without it a restart during an incident
would let go of what the incident is about.
"""

from __future__ import annotations

import json
from pathlib import Path


class Protection:
    """Lies in a run's directory; written by the sender's thread."""

    def __init__(self, home: Path) -> None:
        self._path = home / "protected.json"

    def read(self) -> frozenset[str]:
        """Nothing where it is missing or damaged."""
        try:
            names = json.loads(self._path.read_text())
            return frozenset(name for name in names if isinstance(name, str))
        except (OSError, ValueError, TypeError, RecursionError):
            return frozenset()

    def write(self, names: frozenset[str]) -> None:
        """Whole or not at all; raise OSError."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(sorted(names)))
        fresh.replace(self._path)
