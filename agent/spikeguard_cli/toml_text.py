"""Plain values as TOML. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spikeguard_protocol.escaping import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(plain: Mapping[str, Any], prefix: str = "") -> str:
    """A mapping of numbers, texts, lists and tables as TOML, in order."""
    tables = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    lines = [
        f"{_key(name)} = {_literal(value)}\n" for name, value in plain.items() if name not in tables
    ]
    for name, value in tables.items():
        inner = to_toml(value, f"{prefix}{_key(name)}.")
        lines.append(inner if _only_tables(value) else f"\n[{prefix}{_key(name)}]\n{inner}")
    return "".join(lines)


def _only_tables(plain: Mapping[str, Any]) -> bool:
    return all(isinstance(value, Mapping) for value in plain.values())


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_literal(inner)}" for name, inner in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """A string of one line: what would not show is written as an escape that TOML reads back."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(_escape(c) if printable(c) != c else c for c in inner) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
