"""One row of the table: everything said of a run, held against what was done to it.

Pure: a record and its twin in, verdicts out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks.truth_cases import (
    BACK,
    CASES,
    DAMAGED,
    DATA,
    SETTLED_STEPS,
    TRUTHS,
    Case,
    Return,
    StepLog,
    Truth,
    class_of,
    fault_rows,
)
from benchmarks.truth_claims import False_, Happened, Said, false_statements
from benchmarks.truth_site import PRICE_PER_HOUR, Decision, Record, Text
from spikeguard_trainer.faults import Fault

ONSET_ROWS = 40  # by which an onset may lie behind the end of its fault
NEXT_ROWS = 12  # before an onset: a fault so near is what it is about
NAMED = 0.6  # confidence from which a cause counts as named
COST_SHARE = 0.1
UNDER_WAY_STEPS = 25  # trained while a message and an answer are under way
PACE_SPREAD = 1.1  # most over least of one proposal's pace while it waits
OF_ROLLBACK = ("applied", "judged")
HEDGED = re.compile(r"nothing points to the data|although|not known|unknown", re.I)
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass
class Judged:
    """The columns of one row; every list holds what is wrong, empty = right."""

    case: str
    seed: int
    delay: int
    incidents: int = 0  # that a fault is behind
    without_fault: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # approvals of what had been read
    missing: list[str] = field(default_factory=list)  # what a text had to say
    named: int = 0  # incidents whose first cause has NAMED or more and is not `unknown`
    causes: list[str] = field(default_factory=list)  # as said, for the table
    remedies: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    cost: str = ""
    texts: int = 0  # different ones that were read: page, terminal, messages, post-mortem, API
    follow_ups: int = 0
    needs_action: bool = False
    proposed: bool = False
    outcomes_right: int = 0
    wrong_cause: list[str] = field(default_factory=list)
    wrong_remedy: list[str] = field(default_factory=list)
    wrong_outcome: list[str] = field(default_factory=list)
    wrong_cost: list[str] = field(default_factory=list)
    missing_followups: list[str] = field(default_factory=list)
    false: list[False_] = field(default_factory=list)


@dataclass
class _Context:
    record: Record
    log: StepLog
    faults: list[tuple[Fault, int]]

    def rows_of(self, incident: dict[str, Any]) -> tuple[int, int]:
        """First and last row of the log that an incident can be about."""
        onset = self._row(int(incident["onset_step"]), incident["opened_at"])
        last = len(self.log.rows) - 1
        if incident["closed_step"] is not None:
            last = self._row(int(incident["closed_step"]), incident["closed_at"])
        return max(0, onset - ONSET_ROWS), max(onset, last)

    def _row(self, step: int, at: str) -> int:
        """The row of `step` that was trained last before a time: step numbers repeat."""
        clock = datetime.fromisoformat(at).timestamp()
        rows = [i for i, row in enumerate(self.log.rows) if row.step == step]
        before = [i for i in rows if self.log.rows[i].at <= clock]
        return (before or rows or [0])[-1 if before else 0]

    def of(self, incident: dict[str, Any]) -> list[tuple[Fault, int]]:
        """The faults that it can be about: none that the next incident began with."""
        first, last = self.rows_of(incident)
        later = [other for other in self.record.incidents if other["number"] > incident["number"]]
        onsets = [self._row(int(i["onset_step"]), i["opened_at"]) for i in later]
        last = min([last, *(row - NEXT_ROWS for row in onsets)])
        return [
            pair for pair in self.faults if pair[1] <= last and pair[1] + pair[0].length > first
        ]

    def returns_of(self, incident: dict[str, Any]) -> list[Return]:
        """The rollbacks that were made for it."""
        first, last = self.rows_of(incident)
        return [back for back in self.log.returns if first <= back.row <= last]


def judge(record: Record, twin: Sequence[dict[str, float]]) -> Judged:
    """Hold one record against its case, its step log and its twin."""
    case = next(case for case in CASES if case.name == record.case)
    log = StepLog(record.steps, record.updates, twin, record.restarts)
    context = _Context(record, log, fault_rows(log, case.faults(record.fault_step)))
    row = Judged(record.case, record.seed, record.delay)
    row.needs_action = needs_action(case)
    row.proposed = any(decision.verb != "watch" for decision in record.decisions)
    for incident in record.incidents:
        if not context.of(incident):
            row.without_fault.append(f"{incident['id']}: {incident['reason']}")
            continue
        row.incidents += 1
        _cause(row, incident, context)
        _outcome(row, incident, context)
    row.refused = [f"{one.command}: {said}" for one in record.decisions for said in one.refusals]
    row.missing = [*_missing(record)]
    for decision in record.decisions:
        _remedy(row, decision, context)
    _cost(row, context)
    row.texts = len(record.texts)
    row.false = _false(context)
    return row


_NEEDED = {  # in a message that asks for a decision
    "the verdict": r"^(?:Recoverable|Lingering|Divergent|Outlier batch) \([<>]?\d+%\): ",
    "the cause, or that it is not known": r"^(?:Likely cause \(|The cause is not known)",
    "the remedy with its price": r"^Proposed: .+ Costs \d",
    "the deadline": r"^Can wait \d",
    "what is left if the job dies": r"^(?:If the job dies now|Look at the job): ",
}
_OUTCOME = r"± [\d.e-]+ nats|not finite|below the trend|nothing was trained|still open"


def _missing(record: Record) -> Iterator[str]:
    """What a person needs and was not told."""
    for text in record.texts:
        if text.where == "message" and "\nProposed: " in text.words:
            for what, pattern in _NEEDED.items():
                if not re.search(pattern, text.words, re.M):
                    yield f"{text.incident}, message at step {text.at_step}: {what}"
        if text.where == "post-mortem" and not re.search(_OUTCOME, _section(text.words, "Outcome")):
            yield f"{text.incident}, post-mortem: the outcome with its error"


def needs_action(case: Case) -> bool:
    """Whether waiting would leave the run damaged: the lasting faults of the lab's own table."""
    lasting = ("gradient_ascent", "lr_bump", "weight_scale", "weight_noise", "moment_reset",
               "bit_flip")  # fmt: skip
    return any(name in lasting for name, _, _ in case.injected)


def _truths(faults: Sequence[tuple[Fault, int]]) -> list[Truth]:
    return [TRUTHS[class_of(fault)] for fault, _ in faults]


def _top(incident: dict[str, Any]) -> tuple[str, float]:
    causes = incident["causes"]
    return (causes[0]["cause"], causes[0]["confidence"]) if causes else ("none", 0.0)


def _is_named(incident: dict[str, Any]) -> bool:
    cause, sure = _top(incident)
    return cause not in ("none", "unknown") and sure >= NAMED


def _cause(row: Judged, incident: dict[str, Any], context: _Context) -> None:
    cause, sure = _top(incident)
    row.causes.append(f"{cause} {sure:.0%}")
    if not _is_named(incident):
        return
    row.named += 1
    truths = _truths(context.of(incident))
    if not any(cause in truth.causes for truth in truths):
        row.wrong_cause.append(f"{incident['id']}: {cause} {sure:.0%}")
        return
    follow_ups = _follow_ups(context.record, incident)
    row.follow_ups += (follow_ups or "").count("\n- ")
    about = [word for truth in truths if cause in truth.causes for word in truth.about]
    if follow_ups is not None and not any(word in follow_ups.lower() for word in about):
        row.missing_followups.append(f"{incident['id']}: none speaks of {about[0]}")


def _post_mortem(record: Record, incident: dict[str, Any]) -> str | None:
    escaped = incident["id"].replace("#", "\\#")
    for text in record.texts:
        if text.where == "post-mortem" and escaped in text.words.split("\n", 1)[0]:
            return text.words
    return None


def _follow_ups(record: Record, incident: dict[str, Any]) -> str | None:
    document = _post_mortem(record, incident)
    return None if document is None else _section(document, "Follow-ups")


def _section(document: str, name: str) -> str:
    _, _, rest = document.partition(f"## {name}")
    return rest.partition("\n## ")[0]


def _remedy(row: Judged, decision: Decision, context: _Context) -> None:
    words = f"{decision.verb}"
    arguments = decision.arguments
    if arguments.get("step") is not None:
        words += f" to {arguments['step']}"
    if arguments.get("skip"):
        words += f" skip {arguments['skip']}"
    if arguments.get("lr_factor") or arguments.get("factor"):
        words += f" lr x{arguments.get('lr_factor') or arguments.get('factor'):.2g}"
    row.remedies.append(words)
    incident = next(
        (i for i in context.record.incidents if decision.command.startswith(i["id"] + ".")), None
    )
    if incident is not None and _is_named(incident):
        row.wrong_remedy += [
            f"{decision.command} {words}: {why}"
            for why in _not_allowed(decision, incident, context)
        ]


def _not_allowed(decision: Decision, incident: dict[str, Any], context: _Context) -> Iterator[str]:
    """Why a remedy is none for what was injected by the time it was proposed."""
    faults = [pair for pair in context.of(incident) if _before(pair, decision, context)]
    truths, arguments = _truths(faults), decision.arguments
    if not truths:
        return
    if decision.verb == "rollback":
        if all(truth.transient for truth in truths):
            yield "nothing lasting was done to the run"
        first = min(context.log.rows[index].step for _, index in faults)
        if int(arguments["step"]) >= first and not _later(faults, context):
            yield f"it lies behind the fault at step {first}"
    classes = [class_of(fault) for fault, _ in faults]
    if decision.verb == "stop" and len(set(classes)) == len(classes):
        yield "nothing came twice that a stop would be for"
    skip = arguments.get("skip")
    if skip and not any(truth.skips for truth in truths) and not HEDGED.search(decision.reason):
        yield "innocent batches are skipped"
    factor = arguments.get("lr_factor") or arguments.get("factor")
    again = incident["recurrences"] > 0
    if factor and not again and not any(truth.lowers_rate for truth in truths):
        yield "the learning rate was not at fault"
    known = not HEDGED.search(decision.reason)  # when it was proposed
    if decision.verb == "rollback" and known and any(truth.skips for truth in truths):
        yield from _left_in(skip, faults, _newest_position(decision, context))


def _before(pair: tuple[Fault, int], decision: Decision, context: _Context) -> bool:
    step = context.log.rows[pair[1]].step
    return step <= decision.proposed_step or pair[0].after_rollback


def _later(faults: Sequence[tuple[Fault, int]], context: _Context) -> bool:
    """Whether a second fault came after a return, so that a nearer target is right for it."""
    return any(back.row <= index for _, index in faults for back in context.log.returns)


def _newest_position(decision: Decision, context: _Context) -> int:
    """The newest batch that was trained on when it was proposed: what comes later nobody knows."""
    trained = decision.decided_trained
    if trained is None or decision.decided_step is None:
        return max(row.position for row in context.log.rows)
    since = max(0, decision.decided_step - decision.proposed_step)
    return context.log.rows[max(0, trained - since - 1)].position


def _left_in(
    skip: Sequence[int] | None, faults: Sequence[tuple[Fault, int]], newest: int
) -> Iterator[str]:
    bad = {
        position
        for fault, _ in faults
        if class_of(fault) == DATA
        for position in range(fault.step - 1, fault.step - 1 + fault.length)
        if position <= newest
    }
    left = bad - set(range(*skip)) if skip else bad
    if left and len(faults) == 1:
        yield f"{len(left)} of {len(bad)} bad batches come again"


def _outcome(row: Judged, incident: dict[str, Any], context: _Context) -> None:
    outcome = incident["outcome"]
    row.outcomes.append(str(outcome))
    wrong = _outcome_wrong(outcome, incident, context)
    if wrong:
        row.wrong_outcome.append(f"{incident['id']} {outcome}: {wrong}")
    else:
        row.outcomes_right += 1


def _outcome_wrong(outcome: str | None, incident: dict[str, Any], context: _Context) -> str | None:
    log = context.log
    if incident["closed_step"] is None:
        return "it was never closed"
    level = _level_after(incident, context)
    carried = any(
        command["verb"] not in ("watch", "checkpoint_now") and command["state"] in OF_ROLLBACK
        for command in incident["commands"]
    )
    if outcome in ("healed", "outlier", "withdrawn"):
        if carried:
            return "a command was carried out"
        return None if level <= DAMAGED else f"it stands {level:.2f} above the twin"
    if outcome == "recovered":
        if not carried:
            return "no command was carried out"
        return None if level <= DAMAGED else f"it stands {level:.2f} above the twin"
    if outcome == "level_accepted":
        return None if level >= BACK else f"it stands {level:.2f} above the twin"
    last = max([back.row for back in log.returns] + [index for _, index in context.faults])
    settled = len(log.rows) - last > 2 * SETTLED_STEPS
    if settled and level <= BACK:
        return f"the run was back ({level:.2f} above the twin) well before its end"
    return None


def _level_after(incident: dict[str, Any], context: _Context) -> float:
    """Above the twin once it was over, up to the next fault or return; nats."""
    rows = context.log.rows
    first, close = context.rows_of(incident)
    cuts = [index for _, index in context.faults] + [back.row for back in context.log.returns]
    own = {index for _, index in context.of(incident)} | {
        back.row for back in context.returns_of(incident)
    }
    end = min([cut for cut in cuts if cut > close - 10 and cut not in own] + [len(rows)])
    end = min(end, close + SETTLED_STEPS)
    start = close if end - close >= SETTLED_STEPS // 4 else max(first, end - SETTLED_STEPS // 2)
    part = [context.log.excess(row) for row in rows[start:end]]
    return sum(part) / len(part) if part else 0.0


def _cost(row: Judged, context: _Context) -> None:
    log = context.log
    documents = [_post_mortem(context.record, incident) for incident in context.record.incidents]
    sections = [_section(document, "Cost\n") for document in documents if document]
    costs = [section for section in sections if "No step was lost." not in section]
    again = [cost for cost in costs if _amount(cost, "Steps trained again")]
    told = sum(
        _amount(cost, "Time of steps trained again") or _amount(cost, "Time") or 0.0
        for cost in again
    )
    steps = sum(_amount(cost, "Steps trained again") or 0.0 for cost in again)
    row.cost = f"{steps:.0f} of {log.retrained} steps, {told:.1f} of {log.retrained_s:.1f} s"
    if abs(steps - log.retrained) > COST_SHARE * log.retrained:
        row.wrong_cost.append(f"{steps:.0f} steps trained again, the log has {log.retrained}")
    lost_s = log.retrained_s
    if lost_s and costs and abs(told - lost_s) > COST_SHARE * lost_s + 0.1:
        row.wrong_cost.append(f"{told:.1f} s lost, the log has {lost_s:.1f}")
    row.wrong_cost += _wholes(costs, log)
    for decision in context.record.decisions:
        row.wrong_cost += _proposal_cost(decision)


def _wholes(costs: Sequence[str], log: StepLog) -> Iterator[str]:
    """Dropped updates in the parts, and in the whole the money at the price that was set."""
    dropped = sum(_amount(cost, "Updates dropped") or 0.0 for cost in costs)
    if costs and dropped != len(log.dropped):
        yield f"{dropped:.0f} updates dropped, the log has {len(log.dropped)}"
    for cost in costs:
        seconds, money = _amount(cost, "Time"), _amount(cost, "Money")
        if seconds is None or money is None:
            yield "the cost names no time or no money"
        elif abs(money - seconds * PRICE_PER_HOUR / 3600.0) > COST_SHARE * money + 0.06:
            yield f"{money:.2f} for {seconds:.1f} s at {PRICE_PER_HOUR:.0f} an hour"


def _amount(section: str, name: str) -> float | None:
    """`| Time lost | 1.5 min |` in seconds, `| Money | 1,200.00 USD |` as it is."""
    if re.search(rf"\| {name}[^|]*\| (?:none|0) \|", section):
        return 0.0
    match = re.search(rf"\| {name}[^|]*\| ([\d.,]+)(?: (s|min|h))?[^|]*\|", section)
    if match is None:
        return None
    return float(match[1].replace(",", "")) * UNITS.get(match[2] or "s", 1.0)


def _proposal_cost(decision: Decision) -> Iterator[str]:
    """What was shown at the yes, against what going back from there threw away."""
    if decision.pace_s and max(decision.pace_s) > PACE_SPREAD * min(decision.pace_s):
        low, high = min(decision.pace_s), max(decision.pace_s)
        yield f"{decision.command} priced at {low:.3f} to {high:.3f} s a step"
    if decision.decided_step is None or decision.verb != "rollback":
        return
    expected, shown = decision.decided_step - decision.arguments["step"], decision.cost["steps"]
    if abs(shown - expected) > max(UNDER_WAY_STEPS, COST_SHARE * expected):
        yield f"{decision.command} shown as {shown} steps, {expected} were"


def _false(context: _Context) -> list[False_]:
    record = context.record
    whole = Happened(
        context.log,
        context.faults,
        _truths(context.faults),
        context.log.returns,
        context.log.level(len(context.log.rows)),
    )
    about = {incident["id"]: _happened(incident, context) for incident in record.incidents}
    found: dict[tuple[str, str], False_] = {}
    for text in record.texts:
        for one in false_statements(_said(text), about.get(text.incident, whole)):
            found.setdefault((one.sentence, one.why), one)
    return list(found.values())


def _happened(incident: dict[str, Any], context: _Context) -> Happened:
    faults = context.of(incident)
    returns, level = context.returns_of(incident), _level_after(incident, context)
    return Happened(context.log, faults, _truths(faults), returns, level)


def _said(text: Text) -> Said:
    row = None if text.where == "post-mortem" else text.trained
    return Said(text.where, text.words, row, frozenset(text.topics))
