"""One post-mortem in one of its formats.

Law: pure; the same facts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spikeguard_server.report.document import Document
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.html import render_html
from spikeguard_server.report.markdown import document_markdown
from spikeguard_server.report.plain import json_of
from spikeguard_server.report.writing import document_of

DPI: Final = 100  # 200 on a sheet of A4


class ReportFormat(StrEnum):
    """What a post-mortem can be downloaded as."""

    MARKDOWN = "md"
    HTML = "html"
    JSON = "json"


MEDIA_TYPES: Mapping[ReportFormat, str] = {
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.JSON: "application/json",
}


def render(facts: PostMortem, form: ReportFormat | str) -> bytes:
    """The document, text as UTF-8; raise `ValueError` for a format that is none."""
    document = document_of(facts)
    match ReportFormat(form):
        case ReportFormat.MARKDOWN:
            return document_markdown(document, _png(facts, document)).encode()
        case ReportFormat.HTML:
            return render_html(document, _svg(facts, document)).encode()
        case ReportFormat.JSON:
            return json_of(facts, document.title).encode()


def _png(facts: PostMortem, document: Document) -> bytes | None:
    if document.picture is None:
        return None
    from spikeguard_server.report import plots  # matplotlib takes 0.7 s to import

    return plots.png_of(facts, plots.SHEET, DPI)


def _svg(facts: PostMortem, document: Document) -> str | None:
    if document.picture is None:
        return None
    from spikeguard_server.report import plots

    return plots.svg_of(facts)
