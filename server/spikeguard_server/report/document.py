"""A document as blocks, before it is Markdown or HTML, and the colours that it shares with its
picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading. `numbers` names the columns that align right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


Item = str | tuple[str, str]  # of a list: a sentence, or a link as its name and http(s) address
Block = str | tuple[Item, ...] | Table  # a paragraph, a list, a table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it; of what is empty nothing is shown. `beside`: it shares
    the width with its neighbour that says so too, where there is room for both. `drawn`: the
    picture of the curves ends it."""

    title: str
    blocks: tuple[Block, ...]
    beside: bool = False
    drawn: bool = False


# name -> (light, dark); the picture is drawn in the light ones.
COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1c2430", "#e4e8ee"),
    "muted": ("#657080", "#98a3b3"),
    "rule": ("#dde2e9", "#313a46"),
    "paper": ("#fdfdfc", "#14181e"),
    "panel": ("#f4f6f8", "#1c222b"),
    "kept": ("#1f5f9f", "#79b4f2"),
    "undone": ("#b9770e", "#e5b25d"),
    "trend": ("#3a7d5d", "#6cc39a"),
    "alarm": ("#b3261e", "#ff8a80"),
}
_LIGHT, _DARK = (
    "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items()) for theme in (0, 1)
)
FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'
THEMES = f":root{{{_LIGHT}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"
