"""What the incidents of some weeks came to, as a document.

Law: pure; every figure is one of the summary's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spikeguard_protocol.phrases import cause_phrase
from spikeguard_server.domain.lifecycle.incident_summary import (
    CauseFact,
    Figures,
    RunFact,
    Summary,
    WeekFact,
)
from spikeguard_server.report.document import Block, Document, Paragraph, Section, Table
from spikeguard_server.report.wording import count, duration, plural, word

NOTHING = "none"


def summary_page(facts: Summary) -> Document:
    """As people read it."""
    sections = [
        Section("In short", (Paragraph(in_short(facts)),)),
        Section("By week", (_by_week(facts.weeks),)),
        Section("By run", _by_run(facts)),
        Section("By kind and cause", _by_cause(facts.causes)),
        Section("Causes that came again", _recurring(facts)),
        Section("Open follow-ups", _followups(facts)),
    ]
    return Document(
        title=f"Incidents from {facts.begins[:10]} to {facts.ends[:10]}, {facts.scope}",
        header=(),
        body=tuple(section for section in sections if section.blocks),
        appendix=(),
        footer=(
            f"Read {facts.ends[:19].replace('T', ' ')} UTC. Weeks begin on Monday, UTC; an "
            "incident counts in the week in which it opened. Times are medians. Saved is what a "
            "restart from the newest checkpoint on disk would have trained again and a rollback "
            "did not."
        ),
    )


def in_short(facts: Summary) -> str:
    """In a few sentences."""
    total = facts.total
    if not total.incidents:
        return "No incident opened."
    still = f", {total.still_open:,} of them still open" if total.still_open else ""
    words = [f"{plural(total.incidents, 'incident')} opened{still}."]
    words.append(f"They cost {_amount(total.lost_steps, total.lost_s, total.lost_money)}.")
    if total.saved_steps:
        saved = _amount(total.saved_steps, total.saved_s, total.saved_money)
        words.append(f"Going back from memory or a near checkpoint saved {saved}.")
    if facts.recurring:
        most = facts.recurring[0]
        name = cause_phrase(most.cause or "")
        words.append(f"The cause that came most often is {name}, {most.incidents:,} times.")
    return " ".join(words)


def _amount(steps: int, seconds: float, money: Mapping[str, float]) -> str:
    priced = "".join(f", {said}" for said in _priced(money))
    return f"{plural(steps, 'step')} ({duration(seconds)}{priced})"


def _priced(money: Mapping[str, float]) -> list[str]:
    return [f"{value:,.2f} {currency}" for currency, value in sorted(money.items())]


_HEAD = ("incidents", "to detect", "to decide", "to recover", "lost", "saved")
_NUMBERS = frozenset(range(1, 1 + len(_HEAD)))


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        count(figures.incidents),
        *(_time(s) for s in (figures.detect_s, figures.decide_s, figures.recover_s)),
        _lost(figures.lost_steps, figures.lost_money),
        _lost(figures.saved_steps, figures.saved_money),
    )


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else duration(seconds)


def _lost(steps: int, money: Mapping[str, float]) -> str:
    if not steps:
        return NOTHING
    return ", ".join([plural(steps, "step"), *_priced(money)])


def _by_week(weeks: Sequence[WeekFact]) -> Table:
    rows = tuple((f"{w.name} ({w.begins[5:10]})", *_cells(w.figures)) for w in weeks)
    return Table(("week", *_HEAD), rows, _NUMBERS)


def _by_run(facts: Summary) -> tuple[Block, ...]:
    if not facts.runs:
        return ()
    rows = tuple((_run_name(run), *_cells(run.figures)) for run in facts.runs)
    table, more = Table(("run", *_HEAD), rows, _NUMBERS), facts.runs_count - len(rows)
    return (table, Paragraph(f"And {plural(more, 'more run')}.")) if more > 0 else (table,)


def _run_name(run: RunFact) -> str:
    return run.name if run.project == "default" else f"{run.project}/{run.name}"


def _by_cause(causes: Sequence[CauseFact]) -> tuple[Block, ...]:
    if not causes:
        return ()
    rows = tuple(
        (word(c.kind), _cause(c), count(c.incidents), count(c.runs), count(c.lost_steps))
        for c in causes
    )
    header = ("kind", "likeliest cause", "incidents", "runs", "steps lost")
    return (Table(header, rows, frozenset({2, 3, 4})),)


def _cause(fact: CauseFact) -> str:
    return "not asked" if fact.cause is None else cause_phrase(fact.cause)


def _recurring(facts: Summary) -> tuple[Block, ...]:
    rows = tuple(
        (_cause(c), count(c.incidents), count(c.runs), count(c.lost_steps)) for c in facts.recurring
    )
    header = ("cause", "incidents", "runs", "steps lost")
    return (Table(header, rows, frozenset({1, 2, 3})),) if rows else ()


def _followups(facts: Summary) -> tuple[Block, ...]:
    if not facts.followups:
        return (Paragraph("None."),)
    rows = tuple(
        (
            f"{f.project}/{f.run}#{f.incident}" if f.project != "default" else
            f"{f.run}#{f.incident}",
            str(f.number), f.text, f.owner or "nobody", f.since[:10],
        )
        for f in facts.followups
    )  # fmt: skip
    table = Table(("incident", "", "what", "owner", "since"), rows, frozenset({1}))
    more = facts.followups_count - len(rows)
    return (table, Paragraph(f"And {more:,} more.")) if more > 0 else (table,)
