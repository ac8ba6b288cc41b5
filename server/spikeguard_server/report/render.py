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


class Format(StrEnum):
    """What a post-mortem can be downloaded as."""

    MARKDOWN = "md"
    HTML = "html"
    JSON = "json"


MEDIA_TYPES: Mapping[Format, str] = {
    Format.MARKDOWN: "text/markdown; charset=utf-8",
    Format.HTML: "text/html; charset=utf-8",
    Format.JSON: "application/json",
}

_WRITERS: Mapping[Format, Callable[[PostMortem], str]] = {
    Format.MARKDOWN: markdown_of,
    Format.HTML: html_of,
    Format.JSON: json_of,
}


def render(facts: PostMortem, form: Format | str) -> bytes:
    """The document as UTF-8; raise `ValueError` for a format that is none."""
    return _WRITERS[Format(form)](facts).encode()
