"""Checkpoints on disk."""

from __future__ import annotations

from os import PathLike
from pathlib import Path


class CheckpointDirectory:
    """Full-state checkpoints of the job in `path`, one every `every` steps, the newest `keep`."""

    def __init__(self, path: str | PathLike[str], every: int = 100, keep: int = 5) -> None:
        self.path = Path(path)
        self.every = every
        self.keep = keep
