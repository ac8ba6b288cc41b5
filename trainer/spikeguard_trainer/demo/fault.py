"""Which fault the demo shows: `FAULT=NAME` as a person writes it. Pure."""

from __future__ import annotations

from difflib import get_close_matches

from spikeguard_trainer.faults import Fault, FaultError, FaultName, parse_fault

STEP = 250  # at which it comes, of 600
SIZES = {FaultName.LR_BUMP: ":12:40"}  # others as the trainer has them


def demo_fault(text: str) -> Fault:
    """The fault that `text` names: a name alone, or as the trainer takes it. Raise `FaultError`
    with those there are."""
    name, at, rest = text.strip().partition("@")
    known = name.lower().replace("-", "_")
    if known not in list(FaultName):
        close = get_close_matches(known, list(FaultName), n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        names = "\n  ".join(FaultName)
        raise FaultError(f"{text} is no fault{meant}\nthere are:\n  {names}")
    return parse_fault(
        f"{known}@{rest}" if at else f"{known}@{STEP}{SIZES.get(FaultName(known), '')}"
    )
