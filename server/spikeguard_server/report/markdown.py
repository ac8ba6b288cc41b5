"""A post-mortem in Markdown (CommonMark with tables), its picture embedded as a reference.

Whatever came from outside is escaped; the picture's data stands at the very end, so that the text
stays readable in an editor.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from spikeguard_protocol.escaping import markdown_text as escape
from spikeguard_server.report.document import (
    Block,
    Bullets,
    Document,
    Links,
    Paragraph,
    Picture,
    Section,
    Table,
)


def document_markdown(document: Document, picture: bytes | None) -> str:
    """The document with its picture as PNG."""
    parts = [f"# {escape(document.title)}"]
    if document.header:
        told = [f"**{escape(what)}** {escape(value)}" for what, value in document.header]
        parts.append(" · ".join(told))
    for section in document.body:
        parts += section_of(section)
    if document.appendix:
        parts += ["---", "# Appendix"]
    for section in document.appendix:
        parts += section_of(section)
    parts += ["---", escape(document.footer)]
    if picture is not None:
        parts.append(f"[curves]: data:image/png;base64,{base64.b64encode(picture).decode()}")
    return "\n\n".join(parts) + "\n"


def section_of(section: Section) -> Iterable[str]:
    """Its heading and its blocks."""
    return [f"## {section.title}", *(_block(block) for block in section.blocks)]


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return escape(text)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Links(items):
            return "\n".join(f"- {escape(name)}: {escape(address)}" for name, address in items)
        case Picture(caption):
            return f"![{escape(caption)}][curves]\n\n*{escape(caption)}*"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    rule = ["---:" if i in table.numbers else "---" for i in range(len(table.header))]
    lines = [table.header, rule, *table.rows]
    cells = [[cell if line is rule else escape(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
