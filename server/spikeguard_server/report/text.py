"""A post-mortem as plain text, for a terminal: no markup, no picture, lines of 88 characters.

Law: only text; what would move a terminal's cursor is taken out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from spikeguard_protocol.escaping import printable
from spikeguard_server.report.document import (
    Block,
    Bullets,
    Document,
    Links,
    Paragraph,
    Section,
    Table,
)

WIDTH: Final = 88
_GAP: Final = 2  # between columns
_LEAST: Final = 8  # of a column that wraps


def plain_text(document: Document) -> str:
    """Any document as text; its pictures are in the other forms."""
    lines = [*textwrap.wrap(document.title, WIDTH), "=" * WIDTH]
    for what, value in document.header:
        lines += _wrapped(value, f"{what + ':':12} ")
    for section in document.body:
        lines += _section(section)
    if document.appendix:
        lines += ["", " Appendix ".center(WIDTH, "=")]
    for section in document.appendix:
        lines += _section(section)
    lines += ["", "-" * WIDTH, *textwrap.wrap(document.footer, WIDTH)]
    return "\n".join(printable(line) for line in lines) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield from ("", section.title, "-" * len(section.title))
    for block in section.blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield from textwrap.wrap(text, WIDTH)
        case Bullets(items):
            for item in items:
                yield from _wrapped(item, "- ")
        case Links(items):
            for name, address in items:
                yield f"- {name}: {address}"  # whole, so that it can be opened
        case Table():
            yield from _table(block)
        case _:
            yield "(picture: see it with --format html or pdf)"


def _wrapped(text: str, head: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _table(table: Table) -> Iterator[str]:
    lines = [table.header, *table.rows] if any(table.header) else list(table.rows)
    widths = _widths(lines)
    for cells in lines:
        yield from _row(cells, widths, table.numbers)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Of each column what it needs; the widest gives way until all fit."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    room = WIDTH - _GAP * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _LEAST:
        widest = widths.index(max(widths))
        second = max([w for i, w in enumerate(widths) if i != widest] or [0])
        over = sum(widths) - room
        widths[widest] -= max(1, min(over, widths[widest] - max(second, _LEAST)))
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], numbers: frozenset[int]) -> Iterator[str]:
    wrapped = [textwrap.wrap(c, w) or [""] for c, w in zip(cells, widths, strict=True)]
    for i in range(max(map(len, wrapped))):
        parts = [
            (lines[i] if i < len(lines) else "").rjust(width)
            if column in numbers
            else (lines[i] if i < len(lines) else "").ljust(width)
            for column, (lines, width) in enumerate(zip(wrapped, widths, strict=True))
        ]
        yield (" " * _GAP).join(parts).rstrip()
