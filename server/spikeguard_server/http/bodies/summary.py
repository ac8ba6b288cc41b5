"""Bodies about a summary of weeks."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import Field

from spikeguard_protocol import IncidentId, RunId
from spikeguard_server.domain.lifecycle.incident_summary import Figures, Summary
from spikeguard_server.http.bodies.run_shapes import TIME, Shape, example
from spikeguard_server.report.render import ReportFormat, render_document
from spikeguard_server.report.summary import in_short, summary_page

FIGURES_EXAMPLE: dict[str, Any] = {
    "incidents": 3,
    "still_open": 1,
    "detect_s": 4.2,
    "decide_s": 96.0,
    "recover_s": 640.0,
    "lost_steps": 391,
    "lost_s": 820.0,
    "saved_steps": 240,
    "saved_s": 504.0,
    "lost_money": {"USD": 22.3},
    "saved_money": {"USD": 13.7},
}
CAUSE_EXAMPLE: dict[str, Any] = {
    "kind": "lingering", "cause": "bad_batch", "incidents": 2, "runs": 1, "lost_steps": 310,
}  # fmt: skip
SUMMARY_EXAMPLE: dict[str, Any] = {
    "begins": "2026-02-16T00:00:00Z",
    "ends": TIME,
    "in_short": "3 incidents opened, 1 of them still open. They cost 391 steps (13.7 min).",
    "total": FIGURES_EXAMPLE,
    "weeks": [{"week": "2026-W11", "begins": "2026-03-09T00:00:00Z", "figures": FIGURES_EXAMPLE}],
    "runs": [{"project": "default", "name": "gpt-124m-7", "figures": FIGURES_EXAMPLE}],
    "runs_count": 1,
    "causes": [CAUSE_EXAMPLE],
    "recurring": [CAUSE_EXAMPLE | {"kind": None}],
    "followups": [
        {
            "incident": "gpt-124m-7#3",
            "project": "default",
            "number": 2,
            "text": "Look at the data of batches 1,201 to 1,205 (5).",
            "owner": "Ada Lovelace",
            "since": TIME,
        }
    ],
    "followups_count": 1,
}


class FiguresBody(Shape):
    """What some incidents came to."""

    model_config = example(FIGURES_EXAMPLE)

    incidents: int
    still_open: int
    detect_s: float | None = Field(description="median, from the onset to the detection")
    decide_s: float | None = Field(
        description="median, from the first proposal to a person's first decision"
    )
    recover_s: float | None = Field(
        description="median, from the onset to the close, of those that recovered"
    )
    lost_steps: int
    lost_s: float
    saved_steps: int = Field(description="that a restart from disk would have trained again")
    saved_s: float
    lost_money: dict[str, float] = Field(description="by currency")
    saved_money: dict[str, float]


class WeekBody(Shape):
    """One week, Monday to Sunday, UTC."""

    week: str
    begins: datetime
    figures: FiguresBody


class RunFiguresBody(Shape):
    """One run."""

    project: str
    name: str
    figures: FiguresBody


class CauseFiguresBody(Shape):
    """Incidents of one kind and one likeliest cause."""

    kind: str | None = Field(description="null: of every kind")
    cause: str | None = Field(description="null: nobody asked for it")
    incidents: int
    runs: int = Field(description="that had one")
    lost_steps: int


class OpenFollowupBody(Shape):
    """Something that is still to be done."""

    incident: str
    project: str
    number: int
    text: str
    owner: str | None
    since: datetime


class SummaryBody(Shape):
    """What the incidents of some weeks came to."""

    model_config = example(SUMMARY_EXAMPLE)

    begins: datetime
    ends: datetime
    in_short: str
    total: FiguresBody
    weeks: list[WeekBody] = Field(description="oldest first")
    runs: list[RunFiguresBody] = Field(description="that lost most first, 50 at most")
    runs_count: int
    causes: list[CauseFiguresBody] = Field(description="the most frequent first")
    recurring: list[CauseFiguresBody] = Field(description="causes that came more than once")
    followups: list[OpenFollowupBody] = Field(description="open ones, the oldest 50")
    followups_count: int


def summary_body(facts: Summary) -> SummaryBody:
    """As programs read it."""
    return SummaryBody(
        begins=_at(facts.begins),
        ends=_at(facts.ends),
        in_short=in_short(facts),
        total=_figures(facts.total),
        weeks=[
            WeekBody(week=w.name, begins=_at(w.begins), figures=_figures(w.figures))
            for w in facts.weeks
        ],
        runs=[
            RunFiguresBody(project=r.project, name=r.name, figures=_figures(r.figures))
            for r in facts.runs
        ],
        runs_count=facts.runs_count,
        causes=[CauseFiguresBody(**asdict(c)) for c in facts.causes],
        recurring=[CauseFiguresBody(**(asdict(c) | {"kind": None})) for c in facts.recurring],
        followups=[
            OpenFollowupBody(
                incident=str(IncidentId(RunId(f.project, f.run), f.incident)), project=f.project,
                number=f.number, text=f.text, owner=f.owner, since=_at(f.since),
            )
            for f in facts.followups
        ],
        followups_count=facts.followups_count,
    )  # fmt: skip


def summary_document(facts: Summary, form: str) -> bytes:
    """As people read it: Markdown, HTML or text."""
    return render_document(summary_page(facts), ReportFormat(form), "Summary")


def _figures(figures: Figures) -> FiguresBody:
    return FiguresBody(**asdict(figures))


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
