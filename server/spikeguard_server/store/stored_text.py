"""Makes text from an agent storable in Postgres."""

from __future__ import annotations


def storable(text: str) -> str:
    """`text` without what no text column takes: NUL, and halves of surrogate pairs."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
