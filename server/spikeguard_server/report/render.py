"""One post-mortem in one of its formats: the same facts give the same bytes.

`templates/postmortem.html` is the page: no script, nothing fetched, fit for screen and print. The
picture is an inline SVG whose colours are CSS variables, so that one serves light, dark and paper;
in Markdown (CommonMark with tables) a PNG, whose data stands at the very end, so that the text
stays readable in an editor. Whatever came from outside is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from spikeguard_protocol.escaping import html_text, markdown_text as escape
from spikeguard_server.report.appendix import appendix_sections
from spikeguard_server.report.document import (
    Block,
    Bullets,
    Document,
    Links,
    Picture,
    Section,
    Table,
)
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.heading import heading_of
from spikeguard_server.report.page import header_of, page_sections
from spikeguard_server.report.plain import json_of
from spikeguard_server.report.style import FONTS, THEMES
from spikeguard_server.report.wording import ENDINGS, time_of

_CODE = re.compile(r"`([^`]+)`")
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


def document_of(facts: PostMortem) -> Document:
    """The page that people sign, and the appendix that it rests on."""
    incident = facts.incident
    where = f"at step {incident.onset_step:,}"
    return Document(
        title=f"{facts.id}: {heading_of(incident)} {where}, {ENDINGS[incident.outcome]}",
        header=header_of(facts),
        body=tuple(section for section in page_sections(facts) if section.blocks),
        appendix=tuple(section for section in appendix_sections(facts) if section.blocks),
        footer=(
            f"Written {time_of(facts.written_at)} UTC from the record of the incident. All times "
            "are UTC; losses are nats per token."
        ),
    )


def render(facts: PostMortem, form: ReportFormat | str, home: str = "") -> bytes:
    """The document, text as UTF-8; raise `ValueError` for a format that is none. `home` is the
    address of the incident's page, to which HTML leads back."""
    from spikeguard_server.report import plots  # matplotlib takes 0.7 s to import

    document = document_of(facts)
    match ReportFormat(form):
        case ReportFormat.JSON:
            return json_of(facts, document.title).encode()
        case ReportFormat.HTML:
            drawn = Markup(plots.svg_of(facts.picture) if facts.curves else "")
            given = {"document": document, "picture": drawn, "short": SHORT, "home": home}
            page = template("spikeguard_server.report", "postmortem.html")
            return page.render(**given, themes=Markup(THEMES), fonts=Markup(FONTS)).encode()
        case ReportFormat.MARKDOWN:
            parts = [*_markdown(document)]
            if facts.curves:
                png = base64.b64encode(plots.png_of(facts.picture, plots.SHEET, DPI)).decode()
                parts.append(f"[curves]: data:image/png;base64,{png}")
            return ("\n\n".join(parts) + "\n").encode()


def _markdown(document: Document) -> Iterator[str]:
    yield f"# {escape(document.title)}"
    yield " · ".join(f"**{escape(what)}** {escape(value)}" for what, value in document.header)
    for section in document.body:
        yield from _section(section)
    yield from ("---", "# Appendix")
    for section in document.appendix:
        yield from _section(section)
    yield from ("---", escape(document.footer))


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    yield from map(_block, section.blocks)


def _block(block: Block) -> str:
    match block:
        case str():
            return escape(block)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Links(items):
            return "\n".join(f"- {escape(name)}: {escape(address)}" for name, address in items)
        case Picture():
            return "![The curves][curves]"
        case Table():
            rule = ["---:" if i in block.numbers else "---" for i in range(len(block.header))]
            head, *rows = (list(map(escape, line)) for line in (block.header, *block.rows))
            return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


@cache
def template(package: str, name: str) -> Template:
    """A template of a package, which escapes whatever it shows."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["marked"] = marked
    made.filters["kind"] = lambda block: type(block).__name__
    return made.get_template(name)


def shown(value: Any) -> Any:
    """What a template shows of `value`: text by the one function that writes it as HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(html_text(str(value)))
    return value


def marked(text: str) -> Markup:
    """A sentence of ours with what stands between backticks set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", html_text(str(text))))
