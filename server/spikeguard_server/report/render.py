"""One post-mortem in one of its formats.

Law: pure; the same facts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from spikeguard_server.report.document import Document
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.html import render_html
from spikeguard_server.report.markdown import document_markdown
from spikeguard_server.report.pictures import label_of, pngs_of, svgs_of
from spikeguard_server.report.plain import json_of
from spikeguard_server.report.text import plain_text
from spikeguard_server.report.writing import document_of


class ReportFormat(StrEnum):
    """What a post-mortem can be downloaded as."""

    MARKDOWN = "md"
    HTML = "html"
    JSON = "json"
    PDF = "pdf"
    TEXT = "txt"


MEDIA_TYPES: Mapping[ReportFormat, str] = {
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.JSON: "application/json",
    ReportFormat.PDF: "application/pdf",
    ReportFormat.TEXT: "text/plain; charset=utf-8",
}


def render(facts: PostMortem, form: ReportFormat | str) -> bytes:
    """The document, text as UTF-8; raise `ValueError` for a format that is none."""
    document = document_of(facts)
    match ReportFormat(form):
        case ReportFormat.MARKDOWN:
            return document_markdown(document, pngs_of(facts, document)).encode()
        case ReportFormat.HTML:
            return render_html(document, svgs_of(facts, document), "Post-mortem").encode()
        case ReportFormat.JSON:
            return json_of(facts, document.title).encode()
        case ReportFormat.TEXT:
            return plain_text(document).encode()
        case ReportFormat.PDF:
            return _pdf(facts, document)


def _pdf(facts: PostMortem, document: Document) -> bytes:
    from spikeguard_server.report.pdf import printed  # its library would slow every start

    names = [picture.name for picture in document.pictures]
    labels = {name.value: label_of(facts, name) for name in names}
    return printed(document, pngs_of(facts, document), labels, facts.written_at)
