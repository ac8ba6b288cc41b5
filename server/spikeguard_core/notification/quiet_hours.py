"""Quiet hours: when only urgent messages are sent.

Law: pure; the caller knows the place's clock and hands in weekday and second of the day. What is
held is told when they end, if it is still true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard_protocol import Kind, ProtocolError

DAY_S = 86_400
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_KNOWN = ("begin", "end", "timezone", "days", "urgent")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `begin` to `end` by the clocks of `timezone`, over midnight if `end` is the earlier."""

    begin: str = "22:00"  # HH:MM
    end: str = "07:00"  # HH:MM, on the next day if it is the earlier
    timezone: str = "UTC"  # a name of the IANA database
    days: tuple[str, ...] = DAYS  # on which they begin
    urgent: tuple[str, ...] = (Kind.DIVERGENT.value,)  # incidents of these kinds are told at once

    def left_s(self, weekday: int, second: int) -> float | None:
        """Seconds until they end; None outside them. `weekday` is 0 on Mondays."""
        begin, end = seconds_of(self.begin), seconds_of(self.end)
        lasts = (end - begin) % DAY_S
        for ago in (0, 1):  # those that began today, or yesterday
            since = second - begin + ago * DAY_S
            if 0 <= since < lasts and DAYS[(weekday - ago) % 7] in self.days:
                return float(lasts - since)
        return None

    def holds(self, kind: Kind | None) -> bool:
        """Whether an incident of `kind` waits; None, the run itself, never does."""
        return kind is not None and kind.value not in self.urgent


def seconds_of(clock: str) -> int:
    """`07:30` as seconds since midnight."""
    hours, minutes = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60


def read_quiet_hours(plain: Any, error: type[ProtocolError]) -> QuietHours:
    """Read what a person wrote; raise `error` naming field, limit and remedy."""
    if not isinstance(plain, Mapping):
        raise error("quiet", "takes a table", f"Known: {', '.join(_KNOWN)}")
    for name in plain:
        if name not in _KNOWN:
            raise error(f"quiet.{name!s:.40}", "is no setting", f"Known: {', '.join(_KNOWN)}")
    usual = QuietHours()
    clocks = {name: plain.get(name, getattr(usual, name)) for name in ("begin", "end")}
    for name, value in clocks.items():
        if not isinstance(value, str) or not _CLOCK.fullmatch(value):
            raise error(f"quiet.{name}", "is written HH:MM", f"Got {value!r:.40}")
    if clocks["begin"] == clocks["end"]:
        raise error("quiet.end", "differs from begin", "Leave quiet hours out, or name some")
    zone = plain.get("timezone", usual.timezone)
    if not isinstance(zone, str) or len(zone) > 64 or not _ZONE.fullmatch(zone):
        raise error("quiet.timezone", "is a name such as Europe/Berlin", f"Got {zone!r:.60}")
    days = _words("days", plain.get("days", usual.days), DAYS, error)
    urgent = _words("urgent", plain.get("urgent", usual.urgent), tuple(Kind), error)
    return QuietHours(clocks["begin"], clocks["end"], zone, days, urgent)


def _words(
    name: str, value: Any, known: tuple[str, ...], error: type[ProtocolError]
) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(word in known for word in value):
        raise error(f"quiet.{name}", f"takes a list of {', '.join(known)}", f"Got {value!r:.60}")
    return tuple(str(word) for word in value)
