"""Lines that are no names with numbers, as data: a pattern a tool, its groups named as columns.

All other tools are read by the general reader (`console.py`). Of each tool, and of some 150 more, a
line stands in `tests/replay/consoles.toml`, with where it was seen.
"""

from __future__ import annotations

import re
from typing import Final

PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\s*(?P<epoch>\d+)\|(?P<step>\d+)\|Loss: (?P<loss>[-+\w.]+)",  # torchtune's bar
        # levanter
        r"Progress on:train (?:(?P<step>[\d.]+)|[\d.]+[kM])it/.*?loss=(?P<loss>[-+\w.]+)",
        r"^\s*(?P<step>\d+) +[\d.]+ s run, +(?P<loss>\S+) loss, +(?P<lr>\S+) LR",  # tinygrad
        r"^(?P<step>\d+) train (?P<loss>[-+\w.]+)$",  # build-nanogpt's log.txt
    )
)
