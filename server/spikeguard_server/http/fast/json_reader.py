"""JSON of agents, read in a fifth of the time that the standard library takes.

Law: nothing is taken, refused or understood in another way than by `plain_json`. What the quick
reader refuses is read again by that: of what there is, some is fine there (a float beyond the
largest, a lone surrogate), and what is not is refused in its words.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from spikeguard_protocol import plain_json

_QUICK: Final = msgspec.json.Decoder()


def read_json(body: bytes) -> Any:
    """As `plain_json`, errors included."""
    try:
        return _QUICK.decode(body)
    except (ValueError, RecursionError):
        return plain_json(body)
