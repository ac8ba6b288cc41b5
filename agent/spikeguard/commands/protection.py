"""What the server protects, as it said last: the next attempt knows before it has spoken again.

`DIR/protected.json`: names of snapshots and checkpoints. Without it a restart during an incident
would let go of what the incident is about.
"""

from __future__ import annotations

from pathlib import Path

from spikeguard.commands.line_files import open_line, sealed_line
from spikeguard.faults import log
from spikeguard_protocol.plain_files import read_plain


class Protection:
    """Lies in a run's directory; written by the sender's thread."""

    def __init__(self, home: Path) -> None:
        self._path = home / "protected.json"

    def read(self) -> frozenset[str]:
        """Nothing where it is missing or damaged."""
        try:
            plain, _, sound = open_line(read_plain(self._path))
        except OSError:
            return frozenset()
        names = plain.get("protected") if plain is not None and sound else None
        if not isinstance(names, list):
            log.warning(
                "%s was damaged: until the server is heard nothing is protected", self._path
            )
            return frozenset()
        return frozenset(name for name in names if isinstance(name, str))

    def write(self, names: frozenset[str]) -> None:
        """Whole or not at all; raise OSError."""
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(sealed_line({"protected": sorted(names)}))
        fresh.replace(self._path)
