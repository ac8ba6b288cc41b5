"""The colours, chosen once.

No colour carries a meaning alone; a word, a dash or a shape says the same. The hues are those of
Okabe and Ito, which people with any colour vision tell apart (jfly.uni-koeln.de/color), set lighter
on dark ground.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one ground."""

    curve: str
    abandoned: str
    band: str
    onset: str
    detected: str
    peak: str
    command: str
    note: str
    text: str
    grid: str


LIGHT = Palette(
    curve="#0b62a4",
    abandoned="#8a94a3",
    band="#009e73",
    onset="#c44e00",
    detected="#9a6a00",
    peak="#a3437c",
    command="#00795a",
    note="#5b4bb7",
    text="#3c4757",
    grid="#e6e9ee",
)
DARK = Palette(
    curve="#5cb8f0",
    abandoned="#7d8896",
    band="#35c79b",
    onset="#ff8a4c",
    detected="#f0b73c",
    peak="#e79bc4",
    command="#4fd3ab",
    note="#b3a5ff",
    text="#c3ccd8",
    grid="#2b3440",
)

# A tone of the style sheet for the words that a chip may show; of all others it is calm.
TONE: Mapping[str, str] = {
    "live": "good",
    "silent": "warn",
    "open": "bad",
    "recovering": "warn",
    "recoverable": "good",
    "lingering": "warn",
    "divergent": "bad",
    "waiting": "ask",
    "yes": "good",
    "no": "warn",
}


def palette(*, dark: bool) -> Palette:
    """The colours for a ground."""
    return DARK if dark else LIGHT
