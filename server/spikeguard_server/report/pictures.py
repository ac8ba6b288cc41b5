"""Every picture of a document by its name, as SVG for a page and as PNG for the others.

Law: matplotlib is imported when the first picture is drawn: it would slow every start by 0.7 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spikeguard_server.report.document import Document, PictureName
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.plot_choice import histogram_shown, picture_label, token_caption

DPI: Final = 100  # 200 on a sheet of A4


def svgs_of(facts: PostMortem, document: Document) -> Mapping[str, str]:
    """The pictures that the document shows, as inline SVG elements, by name."""
    return {picture.name.value: _svg(facts, picture.name) for picture in document.pictures}


def pngs_of(facts: PostMortem, document: Document) -> Mapping[str, bytes]:
    """The same on white."""
    return {picture.name.value: _png(facts, picture.name) for picture in document.pictures}


def label_of(facts: PostMortem, name: PictureName) -> str:
    """What a picture shows, for those who do not see it."""
    from spikeguard_server.report.layer_plot import layers_label

    if name is PictureName.LAYERS:
        return layers_label(facts)
    return token_caption(facts) if name is PictureName.TOKENS else picture_label(facts)


def _svg(facts: PostMortem, name: PictureName) -> str:
    from spikeguard_server.report import layer_plot, plots

    if name is PictureName.CURVES:
        return plots.svg_of(facts)
    label = label_of(facts, name)
    if name is PictureName.LAYERS:
        return plots.drawn_inline(lambda: layer_plot.heat_map_of(facts), label)
    counts = histogram_shown(facts)
    assert counts is not None, "a document shows what it has counts of"
    return plots.drawn_inline(lambda: layer_plot.histogram_of(counts), label)


def _png(facts: PostMortem, name: PictureName) -> bytes:
    from spikeguard_server.report import layer_plot, plots

    if name is PictureName.CURVES:
        return plots.png_of(facts, plots.SHEET, DPI)
    if name is PictureName.LAYERS:
        return plots.drawn_png(lambda: layer_plot.heat_map_of(facts), DPI)
    counts = histogram_shown(facts)
    assert counts is not None, "a document shows what it has counts of"
    return plots.drawn_png(lambda: layer_plot.histogram_of(counts), DPI)
