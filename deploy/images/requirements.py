"""Prints what one extra asks pip for, so that an image can install that before the sources.

Law: pyproject.toml is the only place that names dependencies; this only reads it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_OWN = re.compile(r"spikeguard\[(?P<extras>[^\]]+)\]")


def requirements(extras: dict[str, list[str]], name: str) -> list[str]:
    """What `name` asks for, with the project's own extras taken apart."""
    found: list[str] = []
    for line in extras[name]:
        own = _OWN.fullmatch(line)
        parts = own["extras"].split(",") if own else []
        found += [line] if own is None else []
        found += [wanted for part in parts for wanted in requirements(extras, part.strip())]
    return list(dict.fromkeys(found))


def main(pyproject: Path, name: str) -> int:
    """Print the requirements of extra `name`, one a line."""
    project = tomllib.loads(pyproject.read_text())["project"]
    print("\n".join(requirements(project["optional-dependencies"], name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
