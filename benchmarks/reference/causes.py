"""Every cause: what it calls for, and what to check before approving it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from benchmarks.reference.table import meaning_of, table
from spikeguard_core.policy.remedies import GoBack, Rate, Skip, remedy_of
from spikeguard_protocol import Cause, Kind

HEAD = """# Causes

What is proposed for each cause of an incident, and what to check before approving. What is left for
the next morning stands in the post-mortem.

What speaks for a cause: [diagnosis](../diagnosis.md#causes). A cause that is less than {sure} sure
is handled as `unknown`, but for `replicas_apart`. A recoverable incident, and one of an outlier
batch, gets no proposal. Words in italics are filled in with what was measured.
"""


def page() -> str:
    """The whole page."""
    words = [_words(title, kind) for title, kind in (
        ("rollback to", GoBack), ("batches skipped", Skip), ("learning rate", Rate),
    )]  # fmt: skip
    head = HEAD.format(sure=f"{remedy_of(Cause.BAD_BATCH, Kind.LINGERING).sure:.0%}")
    return "\n".join([head, _overview(), *words, _again(), *map(_section, Cause)])


def _overview() -> str:
    head = ("cause", "in words", "rollback to", "batches skipped", "learning rate")
    return table(head, [
        (
            f"[`{one.value}`](#{one.value})", row.title, f"`{row.back}`", _skipped(one),
            f"`{row.rate}`" if row.back is not GoBack.NO else "",
        )
        for one in Cause
        for row in (remedy_of(one, Kind.LINGERING),)
    ])  # fmt: skip


def _skipped(one: Cause) -> str:
    lingering, divergent = (remedy_of(one, kind).skip for kind in (Kind.LINGERING, Kind.DIVERGENT))
    return f"`{lingering}`" + (f"; divergent: `{divergent}`" if divergent is not lingering else "")


def _words(title: str, kind: type[StrEnum]) -> str:
    known = [(f"`{one}`", meaning_of(kind, one.name)) for one in kind]
    return table((title, "meaning"), known)


def _again() -> str:
    exempt = [f"`{one}`" for one in Cause if not remedy_of(one, Kind.LINGERING).again]
    return (
        "## When it comes back\n\nA spike that came back with the batches of its onset has them "
        f"skipped, but for {', '.join(exempt)}.\n"
    )


def _section(one: Cause) -> str:
    row = remedy_of(one, Kind.LINGERING)
    heading = f"## `{one}`\n\n"
    for earlier in Cause:
        if earlier is one:
            break
        if replace(remedy_of(earlier, Kind.LINGERING), diagnosis=one) == row:
            return f"{heading}As [`{earlier}`](#{earlier}).\n"
    parts = (
        f"Reason: {row.because}\n",
        f"Reason of a stop: {row.at_stop}\n" if row.at_stop else "",
        _before(row.checks),
    )
    return heading + "\n".join(filter(None, parts))


def _before(checks: Sequence[str]) -> str:
    """Empty where there is nothing to check."""
    return f"Before approving: {_filled(' '.join(checks))}\n" if checks else ""


def _filled(text: str) -> str:
    """A sentence with its fields in italics."""
    named = re.sub(r"\{(\w+)[^}]*\}", lambda found: f"*{found[1].replace('_', ' ')}*", text)
    return named.replace("**", "* *")
