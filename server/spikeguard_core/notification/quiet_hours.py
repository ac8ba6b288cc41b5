"""Quiet hours: when only urgent messages are sent. What is held is told when they end, if it is
still true."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spikeguard_core.setting_fields import SettingError, setting
from spikeguard_protocol import Kind

DAY_S = 86_400
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `begin` to `end` by the clocks of `timezone`, over midnight if `end` is the earlier."""

    begin: str = setting("22:00", "HH:MM")
    end: str = setting("07:00", "HH:MM, on the next day if it is the earlier")
    timezone: str = setting("UTC", "a name of the IANA database")
    days: tuple[str, ...] = setting(DAYS, "on which they begin")
    urgent: tuple[str, ...] = setting(
        (Kind.DIVERGENT.value,), "incidents of these kinds are told at once"
    )

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            if not _CLOCK.fullmatch(getattr(self, name)):
                raise SettingError(f"quiet.{name}", "is written HH:MM", "Write 22:00")
        if self.begin == self.end:
            raise SettingError("quiet.end", "differs from begin", "Leave quiet hours out")
        if len(self.timezone) > 64 or not _ZONE.fullmatch(self.timezone):
            raise SettingError(
                "quiet.timezone", "is a name such as Europe/Berlin", f"Got {self.timezone!r:.60}"
            )
        for name, known in (("days", DAYS), ("urgent", tuple(Kind))):
            if not set(getattr(self, name)) <= set(known):
                raise SettingError(
                    f"quiet.{name}", f"takes a list of {', '.join(known)}", "Of these"
                )

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
