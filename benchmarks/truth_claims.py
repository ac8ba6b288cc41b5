"""Reads what a person reads, and holds each claim against what happened.

Pure: texts in, false statements out. A sentence that makes no claim known here is left alone, so
the list below is the benchmark's reach: numbers of the loss, of steps and of times, where it went
back to and what it left out, who did not answer, how it ended, and what is blamed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.truth_cases import BACK, DAMAGED, Return, StepLog, Truth
from spikeguard_trainer.faults import Fault

NUMBER = r"(-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)"
VIEWS = ("page", "view", "show", "message", "terminal")  # what a person who decides has before them
RISE_ROWS = 6  # by which a smoothed loss may show a rise late
ONSET_STEPS = 60  # an onset lies at most so far behind the fault
LEVEL_SHARE, LEVEL_NATS = 0.3, 0.2  # tolerance of a level difference: a trend is no twin
MEAN_NATS = 0.03  # the same, of the mean of a stretch
ONE_VIEW_NATS, ONE_VIEW_SHARE = 0.03, 0.1  # two figures of one thing in one view


@dataclass(frozen=True)
class Happened:
    """What a text is held against: the run, and what of it belongs to the incident it is about."""

    log: StepLog
    faults: Sequence[tuple[Fault, int]]  # with the row each began in
    truths: Sequence[Truth]  # of those faults
    returns: Sequence[Return]  # the rollbacks that were made for it
    level: float  # nats above the twin when it was over
    unanswered: bool = False  # whether a proposal really ran out of time with nobody deciding


@dataclass(frozen=True)
class Said:
    """A text with the row by which it was read; None: after the run."""

    where: str
    words: str
    row: int | None
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class False_:
    """A statement that does not hold."""

    where: str
    sentence: str
    why: str


def false_statements(said: Said, happened: Happened) -> list[False_]:
    """Every claim of `said` that does not hold."""
    words = re.sub(r"\]\(data:[^)]*\)|data:image[^\s)\"]*", "", said.words)
    words = words.replace("\\", "").replace("**", "")
    found = []
    for sentence in _sentences(words):
        for check in _CHECKS:
            found += [False_(said.where, sentence, why) for why in check(sentence, said, happened)]
    found += [False_(said.where, why[0], why[1]) for why in _one_view(words, said)]
    return found


def _sentences(words: str) -> list[str]:
    lines = [line.strip() for line in words.splitlines()]
    parts = [part for line in lines for part in re.split(r"(?<=[a-z0-9)\]])[.;] +", line)]
    return [part.strip() for part in parts if part.strip()]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


# --- the loss ---------------------------------------------------------------------------------


def _rose(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    for match in re.finditer(rf"[Tt]he loss rose from {NUMBER} to {NUMBER}", sentence):
        before, after = map(_number, match.groups())
        if after <= before:
            yield f"{after:g} is not above {before:g}"
        yield from _is_loss_before(before, happened)
        yield from _is_a_loss(after, happened)


def _loss_before(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    for match in re.finditer(rf"loss before {NUMBER}", sentence):
        yield from _is_loss_before(_number(match[1]), happened)


def _peak(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`peak 5.7 at step 333`, `Peak loss | 5.703 | step 333`, `5.703 nats per token, step 333`."""
    del said
    pattern = rf"[Pp]eak(?: loss)?(?: \|)? {NUMBER}(?: at| \||,)? step {NUMBER}"
    for match in re.finditer(pattern, sentence):
        value, step = _number(match[1]), int(_number(match[2]))
        losses = [row.loss for row in happened.log.rows if row.step == step]
        if not any(math.isclose(value, loss, rel_tol=2e-3) for loss in losses):
            yield f"the loss of step {step} was {', '.join(f'{x:.4g}' for x in losses) or 'none'}"


def _is_loss_before(value: float, happened: Happened) -> Iterator[str]:
    starts = [index for _, index in happened.faults]
    levels = []
    for start in starts:
        before = [row.loss for row in happened.log.rows[max(0, start - 30) : start]]
        levels.append(median(before) if before else math.nan)
    if levels and not any(abs(value - level) <= 0.1 + 0.05 * level for level in levels):
        yield f"the loss before was about {', '.join(f'{level:.3g}' for level in levels)}"


def _is_a_loss(value: float, happened: Happened) -> Iterator[str]:
    losses = [row.loss for row in happened.log.rows]
    if not any(math.isclose(value, loss, rel_tol=2e-3) for loss in losses):
        yield f"no step had a loss of {value:g}"


def _level(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`1.2 above trend`, `0.36 nats above its trend at step 533`."""
    log = happened.log
    newest = len(log.rows) if said.row is None else min(len(log.rows), said.row + 5)
    for value, error, step in _levels(sentence):
        if step is not None:
            rows = [i for i, row in enumerate(log.rows[:newest]) if row.step == step]
        else:
            rows = list(range(0 if said.row is None else max(0, said.row - _age(said)), newest))
        near = {j for i in rows for j in range(max(0, i - 8), min(len(log.rows), i + 2))}
        seen = [log.excess(log.rows[i]) for i in near] + [log.smooth[i] for i in near]
        if seen and not any(_close(value, excess, error) for excess in seen):
            place = f"at step {step}" if step is not None else "by then"
            finite = [x for x in seen if math.isfinite(x)]
            span = f"{min(finite):.2f} to {max(finite):.2f}" if finite else "not finite"
            yield f"{place} it was {span} above the twin"


def _age(said: Said) -> int:
    """Rows by which a figure without a step may be behind: a view speaks of now."""
    return 40 if said.where in VIEWS else 120


_SIDES = {"above": 1.0, "below": -1.0}
_STRETCH = re.compile(rf"steps {NUMBER} to {NUMBER} lie {NUMBER} ± {NUMBER} nats (above|below) the")
_NEWEST = re.compile(rf"loss is {NUMBER} above trend over the newest {NUMBER} steps?")


def _stretch(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`steps 256 to 355 lie 0.03 ± 0.1 nats above the trend`: their mean, by the twin."""
    del said
    kept = {row.step: row for row in happened.log.rows}
    for match in _STRETCH.finditer(sentence):
        first, last, value, error = map(_number, match.groups()[:4])
        seen = [happened.log.excess(kept[s]) for s in range(int(first), int(last) + 1) if s in kept]
        truth = fmean(seen) if seen else math.nan
        if not abs(truth - value * _SIDES[match[5]]) <= error + MEAN_NATS:
            yield f"they lie {truth:+.3f} off the twin"


def _newest(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`loss is 0.24 above trend over the newest 32 steps`, as of some newest row by then."""
    log, end = happened.log, len(happened.log.rows) if said.row is None else said.row
    for match in _NEWEST.finditer(sentence):
        value, steps = _number(match[1]), int(_number(match[2]))
        ends = range(steps, end + 1) if said.row is None else range(max(steps, end - 60), end + 1)
        means = [fmean(map(log.excess, log.rows[at - steps : at])) for at in ends]
        if means and not any(_close(value, mean) for mean in means):
            yield f"it was {min(means):.2f} to {max(means):.2f} above the twin"


def _levels(sentence: str) -> Iterator[tuple[float, float, int | None]]:
    """Differences to the trend, each with its error as far as one is said, and its step."""
    sentence = _NEWEST.sub("", _STRETCH.sub("", sentence))
    sure = rf"(?: \((?:at least {NUMBER}|perhaps none)\))?"
    above = rf"{sure}(?: nats)? above (?:its |the )?(?:earlier )?trend"
    plain = rf"{NUMBER}{above}(?: at step {NUMBER})?"
    for match in re.finditer(plain, sentence):
        step = int(_number(match[3])) if match[3] else None
        value = _number(match[1])
        least = _number(match[2]) if match[2] else 0.0 if "none" in match[0] else value
        yield value, value - least, step


def _close(value: float, excess: float, error: float = 0.0) -> bool:
    if not math.isfinite(excess):
        return not math.isfinite(value)
    return abs(value - excess) <= max(error, LEVEL_NATS + LEVEL_SHARE * abs(excess))


def _one_view(words: str, said: Said) -> Iterator[tuple[str, str]]:
    """Two differences to the trend in one view, for one step or without one."""
    if said.where not in VIEWS:
        return
    found = list(_levels(words.replace("\n", " ; ")))
    steps = {step for _, _, step in found if step is not None}
    values = [value for value, _, step in found if step is None or len(steps) == 1]
    if not values:
        return
    low, high = min(values), max(values)
    if high - low > ONE_VIEW_NATS + ONE_VIEW_SHARE * abs(high):
        yield f"{low:g} and {high:g} above trend", "two figures for one thing in one view"


def _never_moved(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    if "loss itself never moved" in sentence:
        first = min((index for _, index in happened.faults), default=0)
        moved = [log for log in happened.log.smooth[first:] if log > DAMAGED]
        if moved:
            yield f"it stood up to {max(moved):.2f} above the twin"


# --- how it ended -----------------------------------------------------------------------------


def _ended(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    low, log, level = sentence.lower(), happened.log, happened.level
    row = len(log.rows) if said.row is None else said.row
    if "by itself" in low and re.search(r"came back by itself|healed", low):
        if any(back.row <= row for back in happened.returns):
            yield "it was taken back by a command"
        if level > DAMAGED:
            yield f"it ended {level:.2f} above the twin"
    stayed = re.search(r"stayed above its trend|closed as [a-z ]+, but steps", low)
    if stayed and level < BACK:
        yield f"it ended {level:.2f} above the twin"


def _on_trend(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    log = happened.log
    if re.search(r"loss is on trend|back on trend", sentence, re.I) and said.row is not None:
        around = log.smooth[max(0, said.row - 150) : said.row + 1]
        if around and min(around) > DAMAGED:
            yield f"it was at least {min(around):.2f} above the twin"


def _nobody(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    blamed = re.search(r"nobody (?:has )?answered|see who is paged", sentence, re.I)
    if blamed and not happened.unanswered:
        yield "nothing ran out of time: whoever could decide did"


# --- steps, batches, updates ------------------------------------------------------------------


def _retrained(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    if said.where != "post-mortem":
        return
    pattern = (
        rf"(?:{NUMBER} steps? (?:were |was )?trained again)|(?:Steps trained again \| {NUMBER})"
    )
    for match in re.finditer(pattern, sentence):
        count, truth = _number(match[1] or match[2]), sum(b.steps for b in happened.returns)
        if abs(count - truth) > max(1, 0.1 * truth):
            yield f"{truth} steps were trained again"


def _went_back(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`from step 393 back to ..., leaving out batches 329 to 334 (6)`: only of what was done."""
    match = re.search(rf"from step {NUMBER} back to", sentence)
    if not match or said.row is None:
        return
    newest = int(_number(match[1]))
    if not any(back.newest == newest for back in happened.log.returns):
        yield f"it went back from {[back.newest for back in happened.log.returns]}"
    if out := re.search(rf"leaving out batch(?:es)? {NUMBER}(?: to {NUMBER})?", sentence):
        first, end = int(_number(out[1])), int(_number(out[2] or out[1])) + 1
        row = next(b.row for b in happened.log.returns if b.newest == newest) if not _missing(
            happened, newest) else 0  # fmt: skip
        used = {r.position for r in happened.log.rows[row:]}
        if any(position in used for position in range(first, end)):
            yield "batches of it were trained on afterwards"


def _came_with(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`skip batches 199 to 218 (20), with which it came back`: it rose there after going back."""
    match = re.search(
        rf"skip batch(?:es)? {NUMBER}(?: to {NUMBER} \(\d+\))?, with which it came", sentence
    )
    log, row = happened.log, said.row if said.row is not None else len(happened.log.rows)
    back = max((b.row for b in log.returns if b.row < row), default=None)
    if not match or back is None or said.where == "post-mortem":  # there more than one may be told
        return
    first, last = int(_number(match[1])), int(_number(match[2] or match[1]))
    rose = [i for i in range(back, min(row, len(log.rows))) if log.smooth[i] > DAMAGED]
    if rose and not first - RISE_ROWS <= log.rows[rose[0]].position <= last + RISE_ROWS:
        yield f"it rose again at position {log.rows[rose[0]].position}"


def _bought(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """`lies 0.33 ± 0.02 nats below that of the branch that was undone, on 90 batches that both
    trained on`: by the step log, on so many of the newest."""
    del said
    match = re.search(
        rf"lies {NUMBER} ± {NUMBER} nats (above|below) that of the branch that was undone, "
        rf"on {NUMBER} batches",
        sentence,
    )
    if not match:
        return
    value = _number(match[1]) * (-1.0 if match[3] == "below" else 1.0)
    batches = int(_number(match[4]))
    seen = [_between_branches(back, happened, batches) for back in happened.log.returns]
    if not any(abs(value - truth) <= 2.0 * _number(match[2]) + 0.02 for truth in seen):
        yield f"the kept branch lies {', '.join(f'{x:+.3f}' for x in seen) or 'nowhere'} off it"


def _between_branches(back: Return, happened: Happened, batches: int) -> float:
    """Mean of the kept branch's losses over the undone one's, on the newest `batches` that both
    trained on from the fault on; nats."""
    first = min((index for _, index in happened.faults), default=0)
    undone = {
        row.position: row.loss
        for row in happened.log.rows[first : back.row]
        if row.step > back.target and math.isfinite(row.loss)
    }
    ends = [other.row for other in happened.log.returns if other.row > back.row]
    branch = happened.log.rows[back.row : min(ends, default=None)]
    kept = [row for row in branch if row.position in undone][-batches:]
    return sum(r.loss - undone[r.position] for r in kept) / len(kept) if kept else math.nan


def _missing(happened: Happened, newest: int) -> bool:
    return all(back.newest != newest for back in happened.log.returns)


def _onset(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    pattern = rf"(?:[Oo]nset at step|moved first, at step) {NUMBER}"
    for match in re.finditer(pattern, sentence):
        step = int(_number(match[1]))
        starts = [happened.log.rows[index].step for _, index in happened.faults]
        if starts and not any(start <= step <= start + ONSET_STEPS for start in starts):
            yield f"faults began at {starts}"


def _dropped(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    del said
    low = sentence.lower()
    all_of_them = re.search(r"every update was (?:dropped|skipped)|update after update was", low)
    if all_of_them and len(happened.log.dropped) < 2:
        yield f"{len(happened.log.dropped)} updates did not reach the weights"
    if match := re.search(rf"update of step {NUMBER} was not finite", sentence):
        step = int(_number(match[1]))
        if step not in {row.step for row in happened.log.dropped}:
            yield "that update reached the weights"


# --- what is blamed ---------------------------------------------------------------------------


def _blames(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """A sentence that speaks of a remedy or a cause that nothing injected justifies."""
    if said.where in ("cause", "revision") or not happened.truths or "http" in sentence:
        return
    low = sentence.lower()
    if re.search(r"\bno batch|not the data|nothing points to the data|did not do it|although", low):
        return
    for phrase in {p for truth in happened.truths for p in truth.not_about}:
        if phrase in low and all(phrase in truth.not_about for truth in happened.truths):
            yield f"{phrase!r} is about what was not injected"


def _title(sentence: str, said: Said, happened: Happened) -> Iterator[str]:
    """A message of a decision or its result under the title of a new spike. Where what was applied
    did not hold by the time it is told, the title says so and asks for the next decision."""
    del happened
    if said.where != "message" or sentence != said.words.splitlines()[0].strip():
        return
    told = said.topics & {"approved", "applied", "rejected", "refused"}
    new = r"(?:spike|non-finite \w+|updates dropped|ranks apart) at step|decide:"
    again = re.search(r"(?:came back|stayed after .*), decide:", sentence)
    if told and not again and re.search(new, sentence):
        yield f"the message tells that it was {', '.join(sorted(told))}"


_Check = Callable[[str, Said, Happened], Iterator[str]]
_CHECKS: tuple[_Check, ...] = (
    _rose, _loss_before, _peak, _level, _stretch, _newest, _never_moved, _ended, _on_trend,
    _nobody, _retrained, _went_back, _bought, _came_with, _onset, _dropped, _blames, _title,
)  # fmt: skip
