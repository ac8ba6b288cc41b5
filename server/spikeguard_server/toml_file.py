"""Reads a TOML file named on the command line.

Law: importing this needs the standard library only.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from spikeguard_cli.command import CommandFailed


def read_toml(file: Path) -> dict[str, Any]:
    """What `file` says; raises `CommandFailed` where it cannot be read or is not TOML."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too deep, too many digits
        raise CommandFailed(f"{file} is not TOML: {error}") from error
