"""One post-mortem in one of its formats: the same facts give the same bytes.

`templates/postmortem.html` is the page: no script, nothing fetched, fit for screen and print;
whatever it shows is escaped. The picture is an inline SVG whose colours are CSS variables, so that
one serves light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from spikeguard_protocol.escaping import html_text
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.markdown import document_markdown
from spikeguard_server.report.plain import json_of
from spikeguard_server.report.style import STYLE
from spikeguard_server.report.writing import document_of

DPI: Final = 100  # 200 on a sheet of A4
SHORT: Final = 20  # characters that a cell keeps on one line: a time, a state, a public id


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
    document, form = document_of(facts), ReportFormat(form)
    if form is ReportFormat.JSON:
        return json_of(facts, document.title).encode()
    if document.picture is None:
        drawn, png = "", None
    else:
        from spikeguard_server.report import plots  # matplotlib takes 0.7 s to import

        html = form is ReportFormat.HTML
        drawn = plots.svg_of(facts.picture) if html else ""
        png = None if html else plots.png_of(facts.picture, plots.SHEET, DPI)
    if form is ReportFormat.MARKDOWN:
        return document_markdown(document, png).encode()
    page = _template().render(
        document=document, picture=Markup(drawn), style=Markup(STYLE), short=SHORT
    )
    return page.encode()


@cache
def _template() -> Template:
    made = Environment(
        loader=PackageLoader("spikeguard_server.report"),
        autoescape=True,
        finalize=_escaped,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["kind"] = lambda block: type(block).__name__
    return made.get_template("postmortem.html")


def _escaped(value: Any) -> Any:
    """Text by the one function that writes it as HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(html_text(value))
    return value
