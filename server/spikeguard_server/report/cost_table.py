"""What the incident cost; steps are counted as `domain/policy/cost.py` says."""

from __future__ import annotations

from spikeguard_server.report.document import Block, Paragraph, Table
from spikeguard_server.report.facts import AttemptFact, PostMortem
from spikeguard_server.report.symptoms import Spent, spent_by
from spikeguard_server.report.wording import count, duration, large, number, plural

NOT_KNOWN = "not known"


def cost_blocks(facts: PostMortem) -> tuple[Block, ...]:
    """Steps, time, tokens, GPU-hours and money that were lost."""
    spent, newest = spent_by(facts), facts.attempts[-1] if facts.attempts else None
    on_cpu = newest is not None and newest.settings.get("device") == "cpu"
    money = NOT_KNOWN if spent.money is None else f"{spent.money:,.2f} {facts.currency}"
    rows = [
        ("Steps", count(spent.steps_lost)),
        ("Time", duration(spent.seconds)),
        ("Tokens", NOT_KNOWN if spent.tokens is None else large(spent.tokens)),
        ("Rank-hours (CPU)" if on_cpu else "GPU-hours", _rank_hours(spent.seconds, newest)),
        ("Money", "no price was set" if facts.price_per_hour is None else money),
    ]
    return (Table(("", "lost"), tuple(rows), frozenset({1})),)


def lost_words(facts: PostMortem, spent: Spent) -> str:
    """`189 steps (4.3 min, 99.1 million tokens, 2.36 USD)`; of nothing lost `no step`."""
    if not spent.steps_lost:
        return "no step"
    more = [duration(spent.seconds)] if spent.seconds is not None else []
    if spent.tokens is not None:
        more.append(f"{large(spent.tokens)} tokens")
    if spent.money is not None:
        more.append(f"{spent.money:,.2f} {facts.currency}")
    steps = plural(spent.steps_lost, "step")
    return f"{steps} ({', '.join(more)})" if more else steps


def _rank_hours(seconds: float | None, newest: AttemptFact | None) -> str:
    if seconds is None or newest is None:
        return NOT_KNOWN
    hours = seconds * newest.world_size / 3600.0
    return "<0.001" if 0.0 < hours < 0.001 else number(hours, 3)


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
    pace = "How long a step takes is not known."
    if facts.step_time_s is not None:
        took = number(facts.step_time_s, 3)
        pace = f"Steps that did not measure their time count {took} s, the median before the onset."
    said = "A step counts once: trained again, dropped, stalled, or spent in damage up to its end."
    return (Table(("", "amount"), tuple(rows), frozenset({1})), Paragraph(f"{said} {pace}"))
