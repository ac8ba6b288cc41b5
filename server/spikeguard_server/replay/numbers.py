"""Numbers out of logs, or a refusal that names the place and the remedy."""

from __future__ import annotations

from spikeguard_cli.command import CommandFailed

WRITE_A_NUMBER = "write a number, nan, inf, or leave it blank"


def parse_number(place: str, written: object, remedy: str = WRITE_A_NUMBER) -> float:
    """The number `written`, as text or as JSON gave it; raises `CommandFailed`."""
    if isinstance(written, str | int | float) and not isinstance(written, bool):
        try:
            return float(written)
        except (ValueError, OverflowError):
            pass
    raise CommandFailed(f"{place}: {_short(written)} is not a number: {remedy}") from None


def whole_step(place: str, written: object, remedy: str = WRITE_A_NUMBER) -> int:
    """The step `written`; raises `CommandFailed`."""
    step = parse_number(place, written, remedy)
    if not 0 <= step < 2**53 or step != int(step):
        raise CommandFailed(f"{place}: {_short(written)} is not a whole step number")
    return int(step)


def _short(written: object) -> str:
    text = repr(written) if not isinstance(written, int) or abs(written) < 10**40 else "this"
    return text if len(text) <= 80 else f"{text[:77]}..."
