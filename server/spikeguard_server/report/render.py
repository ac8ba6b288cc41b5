"""One post-mortem in one of its formats.

Law: pure; the same facts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.html import html_of
from spikeguard_server.report.markdown import markdown_of
from spikeguard_server.report.plain import json_of


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

_WRITERS: Mapping[ReportFormat, Callable[[PostMortem], str]] = {
    ReportFormat.MARKDOWN: markdown_of,
    ReportFormat.HTML: html_of,
    ReportFormat.JSON: json_of,
}


def render(facts: PostMortem, form: ReportFormat | str) -> bytes:
    """The document as UTF-8; raise `ValueError` for a format that is none."""
    return _WRITERS[ReportFormat(form)](facts).encode()
