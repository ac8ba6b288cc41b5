"""A post-mortem as one HTML file: no script, nothing fetched, fit for screen and print.

Law: whatever came from outside is escaped. The picture is an inline SVG whose colours are CSS
variables, so that one picture serves light, dark and paper.
"""

from __future__ import annotations

from spikeguard_protocol.escaping import html_text as escape
from spikeguard_server.report.document import Block, Bullets, Paragraph, Picture, Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.style import STYLE
from spikeguard_server.report.writing import document_of

SHORT = 20  # characters that a cell keeps on one line: a time, a state, a public id


def html_of(facts: PostMortem) -> str:
    """The whole page."""
    document = document_of(facts)
    figures = "".join(
        f"<div><dd>{escape(v)}</dd><dt>{escape(what)}</dt></div>" for v, what in document.figures
    )
    picture = _drawn(facts) if facts.curves else ""
    body = "\n".join(_section(section, picture) for section in document.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<p class="eyebrow">Post-mortem</p>\n<h1>{escape(document.title)}</h1>\n'
        f'<p class="summary">{escape(document.summary)}</p>\n<dl class="figures">{figures}</dl>\n'
        f"</header>\n{body}\n<footer>{escape(document.footer)}</footer>\n</main>\n</body>\n</html>\n"
    )


def _drawn(facts: PostMortem) -> str:
    from spikeguard_server.report.plots import svg_of  # matplotlib would slow every start by 0.7 s

    return svg_of(facts)


def _section(section: Section, picture: str) -> str:
    blocks = "\n".join(_block(block, picture) for block in section.blocks)
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>"


def _block(block: Block, picture: str) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Picture(caption):
            return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    head = ""
    if any(table.header):
        head = f"<thead>{_row(table, table.header, 'th')}</thead>"
    rows = "".join(_row(table, row, "td") for row in table.rows)
    return f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'


def _row(table: Table, cells: tuple[str, ...], tag: str) -> str:
    made = (_cell(cell, tag, i in table.numbers) for i, cell in enumerate(cells))
    return f"<tr>{''.join(made)}</tr>"


def _cell(text: str, tag: str, is_number: bool) -> str:
    kind = "number" if is_number else "short" if len(text) <= SHORT else ""
    return f"<{tag}{f' class={kind}' if kind else ''}>{escape(text)}</{tag}>"
