"""What every field of a policy means, as the server tells it: the comments beside the fields."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks.reference.source import meaning_of
from spikeguard_core.policy.settings import ApprovalRule, Policy

FILE = Path(__file__).parents[2] / "server/spikeguard_core/policy/meanings.py"
HEAD = '''"""What the fields of a policy mean. Made by `python -m benchmarks.reference`: change the
comments in `settings` instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

'''


def module() -> str:
    """The whole module."""
    return "\n".join(
        [HEAD + "\n".join(_table("POLICY", Policy)), *_table("APPROVAL", ApprovalRule), ""]
    )


def _table(name: str, kind: type) -> Iterator[str]:
    yield f"{name}: Final[Mapping[str, str]] = {{"
    for one in fields(kind):
        yield from _entry(one.name, meaning_of(kind, one.name))
    yield "}"


def _entry(name: str, meaning: str) -> Iterator[str]:
    text = meaning.replace(chr(34), "'")
    line = f'    "{name}": "{text}",'
    if len(line) <= 100:
        yield line
        return
    yield f'    "{name}": ('
    parts = textwrap.wrap(text, 86, drop_whitespace=False, break_long_words=False)
    yield from (f'        "{part}"' for part in parts)
    yield "    ),"
