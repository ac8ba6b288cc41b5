"""Plain values as TOML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_toml(plain: Mapping[str, Any], prefix: str = "") -> str:
    """A mapping of numbers, texts, lists and tables as TOML, in order."""
    tables = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {_literal(value)}\n" for name, value in plain.items() if name not in tables]
    for name, value in tables.items():
        inner = to_toml(value, f"{prefix}{name}.")
        lines.append(inner if _only_tables(value) else f"\n[{prefix}{name}]\n{inner}")
    return "".join(lines)


def _only_tables(plain: Mapping[str, Any]) -> bool:
    return all(isinstance(value, Mapping) for value in plain.values())


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{name} = {_literal(inner)}" for name, inner in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)
