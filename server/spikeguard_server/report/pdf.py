"""A post-mortem as PDF: the page that people sign on one A4 sheet, the appendix behind it.

fpdf2 draws it: pure Python, with DejaVu Sans as it comes with matplotlib. What that font lacks
(Chinese, emoji) is shown as an empty box; the other forms have it.

Invariants: pure; the same facts give the same bytes. Bounded: a section has `MOST_LINES` rows or
items, a text `MOST_TEXT` characters, all of them `MOST_IN_ALL`, since fpdf2 takes 40 us for each.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

import matplotlib
from fpdf import FPDF
from fpdf.enums import XPos, YPos

from spikeguard_protocol.escaping import printable
from spikeguard_server.report.document import (
    Block,
    Bullets,
    Document,
    Links,
    Paragraph,
    Picture,
    PictureName,
    Section,
    Table,
)
from spikeguard_server.report.style import COLOURS

logging.getLogger("fpdf").setLevel(logging.ERROR)  # it warns of every glyph a font lacks
logging.getLogger("fontTools").setLevel(logging.ERROR)
MOST_LINES: Final = 150
MOST_ROW: Final = 70  # lines of a row: fpdf2 refuses one that is longer than a page
MOST_TEXT: Final = 4_000
MOST_IN_ALL: Final = 40_000  # a long post-mortem has 12,000
MARGIN: Final = 13.0  # mm
GUTTER: Final = 7.0  # mm, between two columns
SIZE, SMALL, STRETCH = 7.7, 6.6, 93.0  # points, points, percent: DejaVu is wide
LEADING: Final = 1.28
PICTURE_MM: Final[Mapping[PictureName, float]] = {
    PictureName.CURVES: 50.0, PictureName.LAYERS: 30.0, PictureName.TOKENS: 32.0,
}  # fmt: skip
_FONT: Final = "DejaVu"
_INK, _MUTED, _RULE, _PANEL = (COLOURS[name][0] for name in ("ink", "muted", "rule", "panel"))


def printed(
    document: Document, pictures: Mapping[str, bytes], labels: Mapping[str, str], at: datetime
) -> bytes:
    """Any document on A4; `pictures` and their `labels` by name."""
    sheet = _Sheet(document.title, at)
    sheet.draw(document, pictures, labels)
    return bytes(sheet.pdf.output())


class _Sheet:
    """A4 pages that are filled from above."""

    def __init__(self, title: str, at: datetime) -> None:
        self._left = MOST_IN_ALL
        self.pdf = pdf = FPDF(format="A4")
        pdf.set_creation_date(at)
        pdf.set_title(printable(title))
        pdf.set_producer("spikeguard")
        for style, path in _fonts().items():
            pdf.add_font(_FONT, style, path)
        pdf.set_margin(MARGIN)
        pdf.set_auto_page_break(True, 11.0)
        pdf.set_stretching(STRETCH)
        pdf.add_page()

    def draw(
        self, document: Document, pictures: Mapping[str, bytes], labels: Mapping[str, str]
    ) -> None:
        """Title, header, body; the appendix from a page of its own; the footer."""
        self._pictures, self._labels = pictures, labels
        self.write(document.title, 11.5, bold=True)
        self._header(document.header)
        self._sections(document.body)
        self.space(1.0)
        self.write(document.footer, SMALL, colour=_MUTED)
        if document.appendix:
            self.pdf.add_page()
            self.write("Appendix", 11.5, bold=True)
            self._sections(document.appendix)
        if self._left <= 0:
            self._left = MOST_TEXT
            self.write("More text than fits here stands in the other forms.", colour=_MUTED)

    def _header(self, rows: Sequence[tuple[str, str]]) -> None:
        self.space(0.6)
        for what, value in rows:
            self.pdf.set_font(_FONT, "", SMALL)
            self._colour(_MUTED)
            self.pdf.cell(22.0, SMALL * 0.3528 * LEADING, what, new_x=XPos.RIGHT, new_y=YPos.TOP)
            self._colour(_INK)
            self.pdf.multi_cell(
                0, SMALL * 0.3528 * LEADING, self._cut(value), align="L",
                new_x=XPos.LMARGIN, new_y=YPos.NEXT,
            )  # fmt: skip

    def _sections(self, sections: Sequence[Section]) -> None:
        i = 0
        while i < len(sections):
            pair = sections[i : i + 2]
            if len(pair) == 2 and all(section.beside for section in pair):
                self._side_by_side(pair[0], pair[1])
                i += 2
            else:
                self._section(sections[i])
                i += 1

    def _side_by_side(self, left: Section, right: Section) -> None:
        """Two columns of one page; both end where the longer one does."""
        pdf, top, page = self.pdf, self.pdf.get_y(), self.pdf.page
        width = (pdf.epw - GUTTER) / 2
        ends = []
        for section, offset in ((left, 0.0), (right, width + GUTTER)):
            pdf.set_y(top)
            pdf.set_left_margin(MARGIN + offset)
            pdf.set_right_margin(MARGIN + (width + GUTTER if not offset else 0.0))
            pdf.set_x(MARGIN + offset)
            self._section(section)
            ends.append(pdf.get_y())
            if pdf.page != page:  # it did not fit: what follows stands below it
                top, page = pdf.get_y(), pdf.page
        pdf.set_margin(MARGIN)
        pdf.set_xy(MARGIN, max(ends[-1], ends[0] if top < ends[0] else ends[-1]))
        pdf.set_auto_page_break(True, 11.0)

    def _section(self, section: Section) -> None:
        pdf = self.pdf
        self.space(1.1)
        if pdf.get_y() > pdf.h - 28.0:
            pdf.add_page()
        pdf.set_draw_color(_RULE)
        pdf.set_line_width(0.15)
        pdf.line(pdf.l_margin, pdf.get_y(), pdf.w - pdf.r_margin, pdf.get_y())
        self.space(0.6)
        self.write(section.title, 8.6, bold=True)
        for block in section.blocks:
            self._block(block)

    def _cut(self, text: str) -> str:
        """What there is still room for."""
        shown = _cut(text)
        if len(shown) > self._left:
            shown = f"{shown[: max(0, self._left)]} ..."
        self._left -= len(shown)
        return shown

    def _block(self, block: Block) -> None:
        if self._left <= 0:
            return
        match block:
            case Paragraph(text):
                self.write(text)
            case Bullets(items):
                for item in items[:MOST_LINES]:
                    if self._left > 0:
                        self._item(item)
            case Links(items):
                for name, address in items:
                    self._item(f"{name}: {address}", address)
            case Table():
                self._table(block)
            case Picture(caption, name):
                self._picture(name, caption)

    def _item(self, text: str, link: str = "") -> None:
        pdf = self.pdf
        pdf.set_font(_FONT, "", SIZE)
        self._colour(_INK)
        pdf.cell(3.0, SIZE * 0.3528 * LEADING, "•", new_x=XPos.RIGHT, new_y=YPos.TOP)
        pdf.multi_cell(
            0, SIZE * 0.3528 * LEADING, self._cut(text), align="L", link=link,
            new_x=XPos.LMARGIN, new_y=YPos.NEXT,
        )  # fmt: skip

    def _table(self, block: Table) -> None:
        pdf = self.pdf
        pdf.set_font(_FONT, "", SMALL + 0.3)
        self._colour(_INK)
        pdf.set_draw_color(_RULE)
        lines = ([block.header] if any(block.header) else []) + list(block.rows[:MOST_LINES])
        aligned = tuple("RIGHT" if i in block.numbers else "LEFT" for i in range(len(block.header)))
        widths = self._widths(lines)
        room = min(1.0, pdf.epw / sum(widths))
        with pdf.table(
            col_widths=[round(10 * width) for width in widths],
            width=min(pdf.epw, sum(widths)), align="LEFT", text_align=aligned,
            borders_layout="HORIZONTAL_LINES", first_row_as_headings=any(block.header),
            line_height=(SMALL + 0.3) * 0.3528 * 1.22, padding=(0.25, 1.2, 0.25, 0),
        ) as table:  # fmt: skip
            for line in lines:
                if self._left <= 0:
                    break
                row = table.row()
                for cell, width in zip(line, widths, strict=True):
                    row.cell(self._cut(self._fitting(cell, width * room)))
        self.space(0.5)
        if (more := len(block.rows) - MOST_LINES) > 0:
            self.write(f"And {more:,} more rows, in the other forms.", SMALL, colour=_MUTED)

    def _widths(self, lines: Sequence[Sequence[str]]) -> list[float]:
        """In mm: what each column needs; the long ones share what is left where not all fit."""
        room, pad = self.pdf.epw, 3.0
        needs = [max(map(self._width, column)) + pad for column in zip(*lines, strict=True)]
        if sum(needs) <= room:
            return needs
        wide = [i for i, need in enumerate(needs) if need > room / len(needs)]
        left = room - sum(need for i, need in enumerate(needs) if i not in wide)
        whole = sum(needs[i] for i in wide)
        return [max(14.0, left * n / whole) if i in wide else n for i, n in enumerate(needs)]

    def _fitting(self, text: str, width: float) -> str:
        """What of a cell has room in a column of so many mm, in a row that has to fit a page."""
        shown = _cut(text)
        takes, room = float(self.pdf.get_string_width(shown)), MOST_ROW * (width - 3.0)
        return shown if takes <= room else f"{shown[: int(len(shown) * room / takes)]} ..."

    def _width(self, text: str) -> float:
        return float(self.pdf.get_string_width(_cut(text)[:300])) * 1.1  # headings are bold

    def _picture(self, name: PictureName, caption: str) -> None:
        png, height = self._pictures.get(name.value), PICTURE_MM[name]
        if png is None:
            return
        if self.pdf.get_y() + height > self.pdf.h - 14.0:
            self.pdf.add_page()
        self.pdf.image(
            io.BytesIO(png), w=self.pdf.epw, h=height, keep_aspect_ratio=True,
            alt_text=self._labels.get(name.value, caption),
        )  # fmt: skip
        self.write(caption, SMALL, colour=_MUTED)

    def write(
        self, text: str, size: float = SIZE, *, bold: bool = False, colour: str = _INK
    ) -> None:
        """A paragraph over the width of the column."""
        self.pdf.set_font(_FONT, "B" if bold else "", size)
        self._colour(colour)
        self.pdf.multi_cell(
            0,
            size * 0.3528 * LEADING,
            self._cut(text),
            align="L",
            new_x=XPos.LMARGIN,
            new_y=YPos.NEXT,
        )

    def space(self, mm: float) -> None:
        """Leave a gap."""
        self.pdf.set_y(self.pdf.get_y() + mm)

    def _colour(self, colour: str) -> None:
        self.pdf.set_text_color(colour)


def _cut(text: str) -> str:
    shown = printable(" ".join(text[: 2 * MOST_TEXT].split()))
    return shown if len(shown) <= MOST_TEXT else f"{shown[:MOST_TEXT]} ..."


@cache
def _fonts() -> Mapping[str, Path]:
    """DejaVu Sans by style, out of matplotlib's own files."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return {"": folder / "DejaVuSans.ttf", "B": folder / "DejaVuSans-Bold.ttf"}
