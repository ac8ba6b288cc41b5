"""Makes text from outside storable in Postgres; `engine` lets all that is written go by this."""

from __future__ import annotations

from typing import Any


def storable(text: str) -> str:
    """`text` without what no text column takes: NUL, and halves of surrogate pairs."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def storable_json(value: Any) -> Any:
    """Plain JSON with every text of it, keys included, made storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): storable_json(item) for name, item in value.items()}
    return [storable_json(item) for item in value] if isinstance(value, list) else value
