"""The pages by the names of their files, and the page that lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.reference import (
    api,
    causes,
    commands,
    detection,
    environment,
    metrics,
    policy,
    words,
)

FOLDER = Path(__file__).parents[2] / "docs/reference"
_MADE: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "environment.md": environment.page,
    "agent.md": environment.agent,
    "detection.md": detection.page,
    "policy.md": policy.page,
    "signals.md": words.signals,
    "causes.md": causes.page,
    "metrics.md": metrics.page,
    "words.md": words.page,
    "api.md": api.page,
}


def index() -> str:
    """The list of the pages, each with its first sentence."""
    rows = []
    for name, make in _MADE.items():
        title, _, rest = make().partition("\n")
        first = rest.strip().partition("\n\n")[0].replace("\n", " ")
        rows.append(f"- [{title.removeprefix('# ')}]({name}): {first}")
    return "\n".join([HEAD, *rows, TAIL])


HEAD = """# Reference

Everything that can be set, read or called, made from the code by `python -m benchmarks.reference`.
"""
TAIL = """
States and the moves between them: [life cycles](../lifecycles.md).
"""
PAGES: Mapping[str, Callable[[], str]] = {"README.md": index, **_MADE}
