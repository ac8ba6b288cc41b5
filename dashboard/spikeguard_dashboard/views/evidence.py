"""What an incident was found out by: batch, layers and signals, as its remedy asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from spikeguard_client import BatchDetail, BatchEvidence, IncidentDetail, Layers, RunDetail
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.evidence_charts import heat_map, histogram
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

HALVES = (1, 1)
NAMES = 24  # of documents
TARGETS = 12
NO_BATCH = (
    "Nothing is known of its batches. The agent tells of them where the loop calls guard.tokens() "
    "or guard.sequence_losses(), or attach() is given name_batch."
)
NO_LAYERS = "No norms by layer have come: the job's flight recorder is off, or the agent is older."


def draw_evidence(visit: Visit, run: RunId, incident: IncidentDetail, signals: Html) -> None:
    """In the order in which the remedy's table asks for it; `signals`: which moved when."""
    parts: dict[str, Callable[[], None]] = {
        "batch": lambda: _batch(visit, run, incident),
        "layers": lambda: _layers(visit, run, incident),
        "signals": lambda: _section("Signals", signals),
    }
    for part in incident["remedy"]["evidence"]:
        draw = parts.get(part)
        if draw is not None:  # a newer server may know more
            draw()


def _section(title: str, *contents: Content) -> None:
    st.html(markup.block(markup.section(title), *contents))


def _layers(visit: Visit, run: RunId, incident: IncidentDetail) -> None:
    number, first = incident["number"], incident["first_layer"]
    signal = "grad_norm" if first is None else first["signal"]

    def load() -> Layers:
        return visit.client.incident_layers(visit.token, run, number, signal)

    seen = look(f"layers {run}#{number} {signal}", load)
    staleness(seen)
    shown = None if seen.data is None else seen.data["map"]
    if seen.data is None or shown is None:
        _section("Layers", markup.paragraph(markup.soft(NO_LAYERS)))
        return
    _section("Layers", markup.paragraph(f"{shown['sentence']}."))
    st.vega_lite_chart(heat_map(seen.data, dark=visit.dark), width="stretch", key="layers")
    what = words.title(signal).lower()
    more = f", {shown['layers']} layers in {len(shown['rows'])} rows: of each its furthest"
    of = more if shown["layers"] > len(shown["rows"]) else ""
    said = f"The {what} of each layer against its own before the onset, the dashed line{of}."
    st.html(markup.block(markup.paragraph(markup.soft(said))))


def _batch(visit: Visit, run: RunId, incident: IncidentDetail) -> None:
    number = incident["number"]

    def load() -> BatchEvidence:
        return visit.client.incident_batch(visit.token, run, number)

    seen = look(f"batch {run}#{number}", load)
    staleness(seen)
    found = seen.data
    if found is None or found["shown"] is None:
        _section("The batch", markup.paragraph(markup.soft(NO_BATCH)))
        return
    batch = found["batches"][found["shown"]]
    sentences = [f"{said}." for said in (found["worst"], found["contrast"]) if said]
    rank = f", rank {batch['rank']}" if batch["rank"] else ""
    _section(
        f"The batch of step {batch['step']:,}{rank}",
        *(markup.paragraph(sentence) for sentence in sentences),
    )
    left, right = st.columns(HALVES, gap="medium")
    left.html(markup.block(_contents(batch), _around(found)))
    if batch["histogram"]:
        with right:
            chart = histogram(batch["histogram"], dark=visit.dark)
            st.vega_lite_chart(chart, width="stretch", key="tokens")
            st.html(markup.block(_tokens(batch)))


def _contents(batch: BatchDetail) -> Html:
    """Documents, and the beginning of the worst sequence."""
    parts: list[Content] = []
    if batch["names"]:
        more = max(0, len(batch["names"]) - NAMES) + batch["names_cut"]
        rest = [f"and {more} more"] if more > 0 else []
        listed = markup.joined(*map(markup.code, batch["names"][:NAMES]), *rest)
        parts.append(markup.paragraph(markup.joined(markup.soft("Documents:"), listed)))
    if batch["snippet"]:
        parts.append(markup.paragraph(markup.soft("The sequence begins:")))
        parts.append(markup.paragraph(markup.code(batch["snippet"]), "sg-snippet"))
    return markup.joined(*parts, gap="")


def _tokens(batch: BatchDetail) -> Html:
    found = batch["histogram"]
    assert found is not None
    texts = found["texts"] or [""] * len(found["ids"])
    each = zip(found["ids"], texts, found["shares"], found["shares_before"], strict=True)
    rows: list[Sequence[Content]] = [
        [str(id), markup.code(text) if text else words.NOTHING, f"{now:.2%}", f"{before:.2%}"]
        for id, text, now, before in each
    ]
    columns = [
        *(Column("Token", numeric=True), Column("Text")),
        *(Column("In this batch", numeric=True), Column("Before", numeric=True)),
    ]
    return markup.folded("Tokens that stand out", markup.table(columns, rows))


def _around(found: BatchEvidence) -> Html:
    """The batches near the onset, a line each."""
    rows: list[Sequence[Content]] = [
        [
            words.count(batch["step"]),
            str(batch["rank"]),
            words.figure(batch["sequence_loss"]),
            f"{batch['histogram']['bins'][0]:.1%}" if batch["histogram"] else words.NOTHING,
            ", ".join(batch["names"][:2]) or words.NOTHING,
        ]
        for batch in found["batches"]
    ]
    columns = [
        *(Column("Step", numeric=True), Column("Rank", numeric=True)),
        *(Column("Worst sequence, nats", numeric=True), Column("New tokens", numeric=True)),
        Column("Documents"),
    ]
    return markup.folded(f"{len(rows)} batches around it", markup.table(columns, rows))


def checkpoints(run: RunDetail) -> Html:
    """The newest that the run could go back to, with what is held of them."""
    rows: list[Sequence[Content]] = [
        [
            target["name"],
            words.count(target["step"]),
            markup.chip(target["health"]),
            "kept for a decision" if target["protected"] else "",
        ]
        for target in run["targets"][:TARGETS]
    ]
    columns = [Column("Checkpoint"), Column("Step", numeric=True), Column("Health"), Column("")]
    return markup.table(columns, rows, stacked=True)
