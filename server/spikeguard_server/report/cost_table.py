"""What the incident cost, beside what doing nothing would have cost.

Law: both columns count steps as `domain/policy/cost.py` says; an estimate shows its range.
"""

from __future__ import annotations

from collections.abc import Callable

from spikeguard_server.domain.policy.cost import money_of
from spikeguard_server.report.document import Block, Paragraph, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.inaction import Inaction, inaction_of
from spikeguard_server.report.symptoms import Spent, spent_by
from spikeguard_server.report.wording import count, duration, large, number

NOT_KNOWN = "not known"


def cost_blocks(facts: PostMortem) -> tuple[Block, ...]:
    """Steps, time, tokens, GPU-hours and money, and the same had nothing been done."""
    spent, alone = spent_by(facts), inaction_of(facts)
    rows = [
        (what, said, _alone(alone, of_steps)) for what, said, of_steps in _measures(facts, spent)
    ]
    table = Table(("", "it cost", "left alone"), tuple(rows), frozenset({1, 2}))
    return (table, Paragraph(alone.sentence))


def lost_words(facts: PostMortem, spent: Spent) -> str:
    """`189 steps (4.3 min, 99.1 million tokens, 2.36 USD)`; of nothing lost `no step`."""
    if not spent.steps_lost:
        return "no step"
    more = [duration(spent.seconds)] if spent.seconds is not None else []
    if spent.tokens is not None:
        more.append(f"{large(spent.tokens)} tokens")
    if spent.money is not None:
        more.append(f"{spent.money:,.2f} {facts.currency}")
    steps = f"{spent.steps_lost:,} step{'s' * (spent.steps_lost != 1)}"
    return f"{steps} ({', '.join(more)})" if more else steps


Measure = tuple[str, str, Callable[[int], str] | None]


def _measures(facts: PostMortem, spent: Spent) -> list[Measure]:
    """What it is called, what it came to, and what so many steps would come to."""
    pace_s, tokens, ranks = _pace_s(facts, spent), facts.tokens_per_step, _ranks(facts)
    price = facts.price_per_hour

    def took(steps: int) -> float:
        return steps * (pace_s or 0.0)

    found: list[Measure] = [
        ("Steps", count(spent.steps_lost), count),
        (
            "Time", duration(spent.seconds),
            None if pace_s is None else lambda steps: duration(took(steps)),
        ),
        (
            "Tokens", NOT_KNOWN if spent.tokens is None else large(spent.tokens),
            None if tokens is None else lambda steps: large(steps * tokens),
        ),
        (
            _hours_of(facts), _rank_hours(spent.seconds, ranks),
            None if pace_s is None or ranks is None else lambda s: _rank_hours(took(s), ranks),
        ),
    ]  # fmt: skip
    if price is not None:
        found.append((
            "Money", _money(spent.money, facts.currency),
            None if pace_s is None else lambda s: _money(money_of(took(s), price), facts.currency),
        ))  # fmt: skip
    return found


def _pace_s(facts: PostMortem, spent: Spent) -> float | None:
    """Seconds of a step had nothing been done: as the undone steps took, which are that run."""
    return spent.again_s / spent.steps if spent.steps and spent.again_s else facts.step_time_s


def _alone(alone: Inaction, of_steps: Callable[[int], str] | None) -> str:
    if alone.same:
        return "the same"
    if of_steps is None or (alone.steps is None and alone.least is None):
        return NOT_KNOWN
    if alone.steps is None or alone.low is None:
        return f"{of_steps(alone.least or 0)} and more"
    if alone.low == alone.high:
        return of_steps(alone.steps)
    if alone.high is None:
        return f"{of_steps(alone.steps)} (at least {of_steps(alone.low)})"
    return f"{of_steps(alone.steps)} ({of_steps(alone.low)} to {of_steps(alone.high)})"


def _ranks(facts: PostMortem) -> int | None:
    return facts.attempts[-1].world_size if facts.attempts else None


def _hours_of(facts: PostMortem) -> str:
    on_cpu = bool(facts.attempts) and facts.attempts[-1].settings.get("device") == "cpu"
    return "Rank-hours (CPU)" if on_cpu else "GPU-hours"


def _rank_hours(seconds: float | None, ranks: int | None) -> str:
    if seconds is None or ranks is None:
        return NOT_KNOWN
    hours = seconds * ranks / 3600.0
    return "<0.001" if 0.0 < hours < 0.001 else number(hours, 3)


def _money(money: float | None, currency: str) -> str:
    return NOT_KNOWN if money is None else f"{money:,.2f} {currency}"


def cost_parts(facts: PostMortem) -> tuple[Block, ...]:
    """What the lost steps are made up of."""
    spent = spent_by(facts)
    rows = [
        ("Steps trained again", count(spent.steps)),
        ("Time lost to them", duration(spent.again_s)),
        ("Updates dropped", count(spent.dropped)),
        *([("Updates that rounded to nothing", count(spent.stalled))] if spent.stalled else []),
        ("Steps in damage, not trained again", count(spent.in_damage)),
        ("Steps lost in all", count(spent.steps_lost)),
        ("Batches skipped", count(spent.batches_skipped)),
        ("Steps from onset to close", count(spent.steps_off_trend)),
    ]
    return (Table(("", "amount"), tuple(rows), frozenset({1})), Paragraph(_reckoned(facts)))


def _reckoned(facts: PostMortem) -> str:
    words = "A step counts once: trained again, dropped, stalled, or spent in damage up to its end."
    if facts.step_time_s is None:
        return f"{words} How long a step takes is not known."
    pace = number(facts.step_time_s, 3)
    return (
        f"{words} Steps that did not measure their time count {pace} s, the median before the "
        "onset."
    )
