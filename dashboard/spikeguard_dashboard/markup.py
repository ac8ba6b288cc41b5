"""Small pieces of HTML: chips, facts, tables, cards, links.

The one place where text becomes HTML. Whatever comes from outside is escaped here; a piece that is
HTML already is an `Html`, and only this module makes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from spikeguard_dashboard import words
from spikeguard_dashboard.palette import TONE
from spikeguard_protocol import RunId
from spikeguard_protocol.escaping import html_text as escape


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already."""

    text: str


Content = Html | str
EMPTY = Html("")


def piece(content: Content) -> str:
    """`content` as HTML, escaped unless it is HTML already."""
    return content.text if isinstance(content, Html) else escape(content)


def joined(*contents: Content, gap: str = " ") -> Html:
    """Pieces beside one another."""
    return Html(gap.join(piece(content) for content in contents if content != EMPTY))


def block(*contents: Content) -> str:
    """What is handed to Streamlit."""
    return f'<div class="sg">{"".join(piece(content) for content in contents)}</div>'


def chip(word: str, text: str | None = None) -> Html:
    """A word of the vocabulary in its tone, in other words if `text` is given."""
    tone = TONE.get(word, "calm")
    return Html(f'<span class="chip {tone}">{escape(text or words.plain(word))}</span>')


def unbroken(*contents: Content) -> Html:
    """Pieces that stay on one line."""
    return Html(f'<span class="nowrap">{joined(*contents).text}</span>')


def soft(text: str) -> Html:
    """Text that stands back."""
    return Html(f'<span class="soft">{escape(text)}</span>')


def prose(text: str) -> Html:
    """A sentence of the server's, in which `backticks` are around what one types."""
    parts = text.split("`")
    return joined(*(code(part) if at % 2 else part for at, part in enumerate(parts)), gap="")


def code(text: str) -> Html:
    """Something to type."""
    return Html(f"<code>{escape(text)}</code>")


def link(text: Content, address: str) -> Html:
    """A link that opens in the same tab."""
    if not address.startswith(("http://", "https://", "/", "./")):
        return Html(piece(text))
    return Html(f'<a href="{escape(address)}" target="_self">{piece(text)}</a>')


def run_address(run: RunId) -> str:
    """Where a run's page is."""
    return f"./run?{urlencode({'run': f'{run.project}/{run.name}'}, safe='/')}"


def incident_address(run: RunId, number: int) -> str:
    """Where an incident's page is."""
    query = urlencode({"run": f"{run.project}/{run.name}", "number": number}, safe="/")
    return f"./incident?{query}"


def login_address(public_url: str, back: str) -> str:
    """Where a person signs in, and comes back from."""
    return f"{public_url}/login?{urlencode({'next': back})}"


def legend_line(colour: str, style: str, name: Content, text: str) -> Html:
    """A line as a chart draws it (solid, dashed or dotted), what it is, and more about it."""
    drawn = (
        f'<span class="sg-line" style="border-top: 3px {escape(style)} {escape(colour)}"></span>'
    )
    return Html(f"{drawn} <b>{piece(name)}</b> {soft(text).text}")


def heading(text: Content, *chips: Html) -> Html:
    """The title of a page with its states."""
    shown = "".join(chip.text for chip in chips)
    return Html(f'<div class="sg-head"><h1>{piece(text)}</h1>{shown}</div>')


def section(text: str) -> Html:
    """The title of a part of a page."""
    return Html(f"<h2>{escape(text)}</h2>")


def paragraph(content: Content, style: str = "") -> Html:
    """A paragraph."""
    return Html(f'<p class="{escape(style)}">{piece(content)}</p>')


def facts(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Names over values, in a row that wraps."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{piece(value)}</dd></div>" for name, value in pairs
    )
    return Html(f'<dl class="sg-facts">{cells}</dl>')


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    numeric: bool = False
    wide: bool = False  # left out on a phone


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Content]], *, stacked: bool = False
) -> Html:
    """A table that scrolls by itself where it is too wide, or stacks its cells on a phone."""
    styles = [_cell_style(column) for column in columns]
    head = "".join(
        f'<th class="{style}">{escape(column.title)}</th>'
        for column, style in zip(columns, styles, strict=True)
    )
    style = ' class="stacked"' if stacked else ""
    starts = [_cell_start(column) for column in columns]
    body = "".join(f"<tr>{_cells(row, starts)}</tr>" for row in rows)
    return Html(
        f'<div class="sg-scroll"><table{style}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell_style(column: Column) -> str:
    return " ".join(["num"] * column.numeric + ["wide"] * column.wide)


def _cell_start(column: Column) -> str:
    """A number, stacked, would not say by itself what it is."""
    label = f' data-label="{escape(column.title)}"' if column.numeric else ""
    return f'<td class="{_cell_style(column)}"{label}>'


def _cells(row: Sequence[Content], starts: Sequence[str]) -> str:
    return "".join(f"{start}{piece(cell)}</td>" for cell, start in zip(row, starts, strict=True))


def card(tone: str, *contents: Content) -> Html:
    """A framed piece in a tone: good, warn, bad, ask or calm."""
    inside = "".join(piece(content) for content in contents)
    return Html(f'<div class="sg-card {escape(tone)}">{inside}</div>')
