"""A document as blocks, before it is Markdown or HTML.

Law: plain text in every block; whoever writes a format escapes for that format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list without order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading. `numbers` names the columns that align right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """The curves around the incident."""

    caption: str


Block = Paragraph | Bullets | Table | Picture


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A post-mortem as a reader meets it."""

    title: str
    summary: str
    figures: tuple[tuple[str, str], ...]  # (value, what it is): the few to see first
    sections: tuple[Section, ...]
    footer: str
