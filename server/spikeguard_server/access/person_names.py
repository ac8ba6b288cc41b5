"""Which names a person may have.

A name is in NFKC, without control, format and invisible characters, and none that a machine goes
by. Names that look alike are two names: the record says how each is known.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from spikeguard_server.errors import Unprocessable

MAX_PERSON: Final = 80
LONGEST: Final = 1000  # characters that are looked at: NFKC may take the square of their number
BY_LINK: Final = " (by a link)"  # behind a name that no login stands behind
# Of Unicode's Default_Ignorable_Code_Point what `isprintable` lets pass, and a braille blank.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0]"
    "|[\U000e0100-\U000e01ef]"
)
_MACHINE = re.compile(
    r"(the )?(server|policy|attempt|token|session|agent|spikeguard|nobody)(\W.*|\d.*| up)?"
    r"|.*\bcommand line|.*\(by (a link|the proxy)\)"
)


def read_person(text: str, field: str = "name") -> str:
    """The name as it is stored; raise `Unprocessable` for what can be no person's, of `field`."""

    def refused(message: str, remedy: str) -> Unprocessable:
        return Unprocessable(message, remedy, field=field)

    if len(text) > LONGEST:
        raise refused(f"A name has at most {MAX_PERSON} characters", "Give a shorter one")
    hidden = any(unicodedata.category(c) in ("Cc", "Cf") for c in text.strip())
    if hidden or _INVISIBLE.search(text):
        raise refused("A name has no control, format or invisible characters", "Type it by hand")
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not 1 <= len(name) <= MAX_PERSON or not name.isprintable() or not re.search(r"[^\W_]", name):
        raise refused(
            f"A name is 1 to {MAX_PERSON} printable characters with a letter among them",
            "Give the name that should stand behind your decisions",
        )
    if _MACHINE.fullmatch(_looks(name)):
        raise refused(f"{name!r} is what the record calls a machine", "Give a person's name")
    return name


def same_name(name: str, other: str) -> bool:
    """Whether two names may stand for one person, however they are known."""
    return _looks(name.removesuffix(BY_LINK)) == _looks(other.removesuffix(BY_LINK))


def _looks(name: str) -> str:
    """A name without its cases."""
    return unicodedata.normalize("NFKC", name).casefold()
