"""Files that only this user may read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spikeguard_cli.own_files import read_own


def write_private(path: Path, text: str) -> None:
    """Write `text` with mode 0600 from the first byte, and replace `path` in one move."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # whoever was there first keeps no hold on it
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def kept_secret(path: Path, make: Callable[[], str]) -> str:
    """What `path` holds, without its line end; what `make` gives, from then on, if it is not there.

    Raise `OSError` where it cannot be read: a secret that is there is never replaced.
    """
    if not path.exists():
        write_private(path, make() + "\n")
    return read_own(path).strip()
