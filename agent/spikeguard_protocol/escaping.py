"""Text from outside, made fit for where it is shown: one function for each medium.

A name, a reason or an answer comes from another process. Printed as it is, an escape sequence could
move the cursor, hide a line or rewrite what a person is about to approve; a bidi override reorders
a page; markup becomes a link or a picture; a cell becomes a formula.

Letters, marks, digits, signs and emoji of every script stay as they are. What is stored and what
the API answers is exact: text is escaped where it is shown, and there only.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, bidi marks, line separators
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters that show nothing
_SEEN = frozenset(  # signs that stand before a number or around it: "Cf", and visible
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
_JOINERS = frozenset("\u200c\u200d")  # of emoji, and between letters of Arabic and Indic scripts
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|#~&$]|^[-+=](?=\s|[-+=]|$)|:(?=//)|(?<=www)\.")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")  # a line that begins a list
_LIVE = re.compile(  # links under other words, signs in pairs that strike or hide, calls of people
    r"(?<=\])(?=[(\[])|(?<=<)(?=\S)|(?<=([*~|`$]))(?=\1)"
    r"|(?<=@)(?=everyone|here)|(?<=(?<!\w)@)(?=\S)"
)


def printable(text: str, keep: str = "") -> str:
    """For a terminal, a line of a log or of a message: whatever would be acted on instead of shown
    is written as its escape, but for what is in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    odd = "".join(c for c in set(text) if c not in keep and (c in _JOINERS or _is_hidden(c, 0)))
    if not odd:
        return text

    def shown(found: re.Match[str]) -> str:
        return escaped(found[0]) if _is_hidden(text, found.start()) else found[0]

    return re.sub(f"[{re.escape(odd)}]", shown, text)


def escaped(character: str) -> str:
    """`\\x1b`, `\\u202e`."""
    return character.encode("unicode_escape").decode("ascii")


def html_text(text: str) -> str:
    """For HTML, between tags and in a quoted attribute."""
    return escape(printable(text, keep="\n\t"))


def markdown_text(text: str) -> str:
    """For CommonMark with GitHub's extensions: on one line, shown as it is."""
    line = printable(" ".join(text.split()))
    return _NUMBERED.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\g<0>", line))


def chat_text(text: str) -> str:
    """For a chat, which may read Markdown and mentions in what it is told is plain: a space keeps
    words from leading elsewhere than they say, from hiding others and from calling anybody.
    `ada@example.org` stays as it is."""
    return _LIVE.sub(" ", printable(" ".join(text.split())))


def _is_hidden(text: str, at: int) -> bool:
    character = text[at]
    if character in _JOINERS:
        return not (0 < at < len(text) - 1 and _joins(text[at - 1]) and _joins(text[at + 1]))
    if character in _BLANK:
        return True
    return unicodedata.category(character) in _HIDDEN and character not in _SEEN


def _joins(character: str) -> bool:
    """Whether a joiner beside it may change how it looks."""
    kind = unicodedata.category(character)
    known = kind[0] in "LM" or kind in ("So", "Sk")
    return known and not character.isascii() and character not in _BLANK
