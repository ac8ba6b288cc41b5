"""A document as blocks, before it is Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The curves: the loss with its branches, and the signal that the cause speaks of."""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses under their names; http or https, as they were checked when they came."""

    items: tuple[tuple[str, str], ...]  # (name, address)


Block = str | Bullets | Table | Picture | Links  # text is a paragraph


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it. `beside`: it shares the width with its neighbour that
    says so too, where there is room for both."""

    title: str
    blocks: tuple[Block, ...]
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A post-mortem as a reader meets it: one page, and what it rests on behind it."""

    title: str
    header: tuple[tuple[str, str], ...]  # (what it is, value)
    body: tuple[Section, ...]
    appendix: tuple[Section, ...]
    footer: str
