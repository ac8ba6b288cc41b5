"""Text from outside, fit for a terminal or a line of a log.

A name, a reason or an answer comes from another process. Printed as it is, an escape sequence in it
could move the cursor, hide a line or rewrite what a person is about to approve.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, bidi marks, line separators


def printable(text: str, keep: str = "") -> str:
    """`text` with every character that a terminal would act on written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in _HIDDEN else _escaped(c) for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
