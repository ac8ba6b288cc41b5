"""A post-mortem in Markdown (CommonMark with tables), its picture embedded as a reference.

Law: whatever came from outside is escaped; the picture's data stands at the very end, so that the
text stays readable in an editor.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from spikeguard_protocol.escaping import markdown_text as escape
from spikeguard_server.report.document import Block, Bullets, Paragraph, Picture, Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.writing import document_of


def markdown_of(facts: PostMortem) -> str:
    """The whole document."""
    document = document_of(facts)
    figures = " · ".join(f"**{escape(v)}** {escape(what)}" for v, what in document.figures)
    parts = [f"# {escape(document.title)}", escape(document.summary), figures]
    for section in document.sections:
        parts += _section(section)
    parts += ["---", escape(document.footer)]
    if facts.curves:
        parts.append(f"[curves]: data:image/png;base64,{_drawn(facts)}")
    return "\n\n".join(parts) + "\n"


def _drawn(facts: PostMortem) -> str:
    from spikeguard_server.report.plots import png_of  # matplotlib would slow every start by 0.7 s

    return base64.b64encode(png_of(facts)).decode()


def _section(section: Section) -> Iterable[str]:
    return [f"## {section.title}", *(_block(block) for block in section.blocks)]


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return escape(text)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Picture(caption):
            return f"![{escape(caption)}][curves]\n\n*{escape(caption)}*"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    rule = ["---:" if i in table.numbers else "---" for i in range(len(table.header))]
    lines = [table.header, rule, *table.rows]
    cells = [[cell if line is rule else escape(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
