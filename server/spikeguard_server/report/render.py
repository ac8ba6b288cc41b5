"""One post-mortem in one of its formats: the same facts give the same bytes.

`templates/postmortem.html` is the page: no script, nothing fetched, fit for screen and print. The
picture is an inline SVG whose colours are CSS variables, so that one serves light, dark and paper;
in Markdown (CommonMark with tables) a PNG, whose data stands at the very end, so that the text
stays readable in an editor. Whatever came from outside is escaped.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spikeguard_protocol.encoding import to_json
from spikeguard_protocol.escaping import html_text, markdown_text as escape
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import followups_of
from spikeguard_server.report.document import FONTS, THEMES, Block, Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.figures import peaks_of, spent_by, symptoms_of
from spikeguard_server.report.page import appendix_sections, happened, header_of, page_sections
from spikeguard_server.report.wording import ENDINGS, heading_of, time_of

_CODE = re.compile(r"`([^`]+)`")
SCHEMA: Final = 3  # of the JSON
_APART: Final = {"batch", "curves"}  # of the facts: told otherwise
_LEFT_OUT: Final = {"run", "run_id", "attempt_id", "expires_in_s"}  # of a command
SHORT: Final = 20  # characters that a cell keeps on one line: a time, a state, a public id


class ReportFormat(StrEnum):
    """What a post-mortem can be downloaded as."""

    MARKDOWN = "md"
    HTML = "html"
    JSON = "json"


MEDIA_TYPES = {"md": "text/markdown", "html": "text/html", "json": "application/json"}


def render(facts: PostMortem, form: ReportFormat | str, home: str = "") -> bytes:
    """The document, text as UTF-8; raise `ValueError` for a format that is none. `home` is the
    address of the incident's page, to which HTML leads back."""
    from spikeguard_server.report import plots  # matplotlib takes 0.7 s to import

    incident = facts.incident
    what = f"{heading_of(incident)} at step {incident.onset_step:,}, {ENDINGS[incident.outcome]}"
    title, header = f"{facts.id}: {what}", header_of(facts)
    body, appendix = _filled(page_sections(facts)), _filled(appendix_sections(facts))
    footer = (
        f"Written {time_of(facts.written_at)} UTC from the record of the incident. All times are "
        "UTC; losses are nats per token."
    )
    match ReportFormat(form):
        case ReportFormat.JSON:
            return _json(facts, title).encode()
        case ReportFormat.HTML:
            drawn = Markup(plots.svg_of(facts) if facts.curves else "")
            page = templates("spikeguard_server.report").get_template("postmortem.html")
            return page.render(
                title=title, header=header, body=body, appendix=appendix, footer=footer,
                picture=drawn, short=SHORT, home=home, themes=Markup(THEMES), fonts=Markup(FONTS),
            ).encode()  # fmt: skip
        case ReportFormat.MARKDOWN:
            said = " · ".join(f"**{escape(name)}** {escape(value)}" for name, value in header)
            parts = [f"# {escape(title)}", said, *_markdown(body), "---", "# Appendix"]
            parts += [*_markdown(appendix), "---", escape(footer)]
            if facts.curves:
                png = base64.b64encode(plots.png_of(facts, plots.SHEET)).decode()
                parts.append(f"[curves]: data:image/png;base64,{png}")
            return ("\n\n".join(parts) + "\n").encode()


def _filled(sections: list[Section]) -> list[Section]:
    """Without empty blocks, and sections that hold no other."""
    found = []
    for one in sections:
        blocks = tuple(b for b in one.blocks if (b.rows if isinstance(b, Table) else b))
        if blocks or one.drawn:
            found.append(replace(one, blocks=blocks))
    return found


def _markdown(sections: list[Section]) -> Iterator[str]:
    for section in sections:
        yield f"## {section.title}"
        yield from map(_block, section.blocks)
        if section.drawn:
            yield "![The curves][curves]"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return escape(block)
    if isinstance(block, Table):
        rule = ["---:" if i in block.numbers else "---" for i in range(len(block.header))]
        head, *rows = (list(map(escape, line)) for line in (block.header, *block.rows))
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))
    texts = (item if isinstance(item, str) else ": ".join(item) for item in block)
    return "\n".join(f"- {escape(text)}" for text in texts)


def _json(facts: PostMortem, title: str) -> str:
    """The facts and the figures derived from them, for other programs; the curves are a call of
    their own."""
    told = {f.name: getattr(facts, f.name) for f in fields(facts) if f.name not in _APART}
    body = told | {
        "schema": SCHEMA,
        "id": facts.id,
        "project": facts.run.project,
        "run": facts.run.name,
        "title": title,
        "what_happened": happened(facts),
        "symptoms": symptoms_of(facts),
        "evidence": {"peaks": peaks_of(facts)},
        "commands": [_command(command) for command in facts.commands],
        "own_acts": [_command(command) for command in facts.own_acts],
        "cost": {**asdict(spent_by(facts)), "currency": facts.currency},
        "follow_ups": followups_of(facts),
    }
    plain = to_json(body)
    text = json.dumps(
        plain, allow_nan=False, indent=1, ensure_ascii=False, default=datetime.isoformat
    )
    return text + "\n"


def _command(command: CommandRow) -> dict[str, Any]:
    body = {f.name: getattr(command, f.name) for f in fields(command) if f.name not in _LEFT_OUT}
    return {"id": str(command.id), "verb": command.verb, **body}


@cache
def templates(package: str) -> Environment:
    """The templates of a package, which escape whatever they show."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["marked"] = marked
    return made


def shown(value: Any) -> Any:
    """What a template shows of `value`: text by the one function that writes it as HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(html_text(str(value)))
    return value


def marked(text: str) -> Markup:
    """A sentence of ours with what stands between backticks set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", html_text(str(text))))
