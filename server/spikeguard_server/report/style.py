"""Colours and fonts that the post-mortem shares with its picture."""

from __future__ import annotations

from collections.abc import Mapping

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


def _variables(theme: int) -> str:
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'
THEMES = (
    f":root{{{_variables(0)}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}\n"
)
