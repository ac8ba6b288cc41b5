"""A post-mortem as one HTML file: no script, nothing fetched, fit for screen and print.

Invariants: `templates/postmortem.html` is the page; whatever it shows is escaped. The picture
is an inline SVG whose colours are CSS variables, so that one serves light, dark and paper.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from spikeguard_protocol.escaping import html_text
from spikeguard_server.report.document import Document
from spikeguard_server.report.style import STYLE

SHORT: Final = 20  # characters that a cell keeps on one line: a time, a state, a public id


def render_html(document: Document, svg: str | None) -> str:
    """The document as a page, with its picture."""
    picture = Markup(svg or "")
    return _template().render(document=document, picture=picture, style=Markup(STYLE), short=SHORT)


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
