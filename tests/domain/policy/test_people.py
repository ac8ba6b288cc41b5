"""The parts of a policy that are about people: quiet hours, the kill switch."""

from __future__ import annotations

import pytest

from spikeguard_core.notification.quiet_hours import DAYS, QuietHours
from spikeguard_protocol import Kind

NIGHT = QuietHours("22:00", "07:00", days=("fri",))
HOUR = 3600


@pytest.mark.parametrize(
    ("weekday", "hour", "left_hours"),
    [
        ("fri", 21.999, None),
        ("fri", 22, 9),
        ("fri", 23.5, 7.5),
        ("sat", 0, 7),
        ("sat", 6.5, 0.5),
        ("sat", 7, None),
        ("sat", 23, None),
        ("fri", 3, None),
    ],
)
def test_quiet_hours_run_over_midnight_from_the_days_on_which_they_begin(
    weekday: str, hour: float, left_hours: float | None
) -> None:
    left = NIGHT.left_s(DAYS.index(weekday), int(hour * HOUR))
    assert left == (None if left_hours is None else left_hours * HOUR)


def test_quiet_hours_within_a_day_end_on_it() -> None:
    lunch = QuietHours("12:00", "13:00")
    assert lunch.left_s(0, 12 * HOUR + 600) == 3000
    assert lunch.left_s(0, 13 * HOUR) is None
    assert lunch.left_s(0, 0) is None


def test_what_is_urgent_and_the_run_itself_wait_for_no_morning() -> None:
    assert NIGHT.holds(Kind.LINGERING)
    assert not NIGHT.holds(Kind.DIVERGENT)
    assert not NIGHT.holds(None)
