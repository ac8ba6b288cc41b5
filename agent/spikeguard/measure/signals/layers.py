"""Which of the model's modules are meant by the names in the settings.

Law: a name that means nothing is refused with the limit and the remedy, before anything began.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from spikeguard.errors import AttachError

MOST = 256  # modules of one setting


def layers_named(
    modules: Mapping[str, nn.Module], patterns: tuple[str, ...]
) -> dict[str, nn.Module]:
    """Those of `modules` that are meant, by name; raises `AttachError`.

    Patterns as for files, a part of a name for a part: `blocks.*`, `blocks.?.attention`.
    """
    named = {name: module for name, module in modules.items() if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        meant = {name: m for name, m in named.items() if _means(pattern, name)}
        if not meant:
            near = get_close_matches(pattern, named, 3) or list(named)[:3]
            raise AttachError(
                "settings",
                f"activation_layers has {pattern!r}, which names no module of the model",
                f"Give names as model.named_modules() has them, like {', '.join(near)}",
            )
        found |= meant
    if len(found) > MOST:
        problem = f"activation_layers names {len(found)} modules; at most {MOST} are watched"
        raise AttachError("settings", problem, "Name fewer: each costs a norm")
    return found


def _means(pattern: str, name: str) -> bool:
    wanted, parts = pattern.split("."), name.split(".")
    return len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))
