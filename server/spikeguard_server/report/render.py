"""One post-mortem in one of its formats.

Law: pure; the same facts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from spikeguard_server.report.document import Document
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.html import html_of, render_html
from spikeguard_server.report.markdown import document_markdown, markdown_of
from spikeguard_server.report.plain import json_of
from spikeguard_server.report.text import plain_text, text_of


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

_WRITERS: Mapping[ReportFormat, Callable[[PostMortem], str]] = {
    ReportFormat.MARKDOWN: markdown_of,
    ReportFormat.HTML: html_of,
    ReportFormat.JSON: json_of,
    ReportFormat.TEXT: text_of,
}


def render(facts: PostMortem, form: ReportFormat | str) -> bytes:
    """The document, text as UTF-8; raise `ValueError` for a format that is none."""
    wanted = ReportFormat(form)
    if wanted is ReportFormat.PDF:
        from spikeguard_server.report.pdf import pdf_of  # its library would slow every start

        return pdf_of(facts)
    return _WRITERS[wanted](facts).encode()


def render_document(document: Document, form: ReportFormat | str, what: str) -> bytes:
    """Any document without pictures, as Markdown, HTML or text; `what` it is."""
    match ReportFormat(form):
        case ReportFormat.MARKDOWN:
            return document_markdown(document, {}).encode()
        case ReportFormat.HTML:
            return render_html(document, {}, what).encode()
        case ReportFormat.TEXT:
            return plain_text(document).encode()
    raise ValueError(f"a {what} is not written as {form}")
