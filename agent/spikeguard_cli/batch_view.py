"""What lay in the batches near an onset, on a terminal."""

from __future__ import annotations

from typing import Any

from spikeguard_protocol.escaping import printable

BAR = 24  # characters of a whole
TOKENS = 10  # lines
NAMES = 12
NONE_TOLD = (
    "Nothing is known of its batches. The agent tells of them where the loop calls guard.tokens() "
    "or guard.sequence_losses(), or attach() is given name_batch."
)


def batch_lines(found: dict[str, Any]) -> list[str]:
    """The batch of the onset whole, the others a line each; safe to print."""
    if found["shown"] is None:
        return [NONE_TOLD]
    batch = found["batches"][found["shown"]]
    lines = [f"Batch of step {batch['step']}, rank {batch['rank']}, position {batch['position']}"]
    lines += [f"{said}." for said in (found["worst"], found["contrast"]) if said]
    lines += _names(batch)
    if batch["snippet"]:
        lines += ["", "It begins:", *_indented(batch["snippet"])]
    lines += _tokens(batch["histogram"]) if batch["histogram"] else []
    lines += ["", "Around it:", *(_line(each) for each in found["batches"] if each is not batch)]
    return [printable(line) for line in lines]


def _names(batch: dict[str, Any]) -> list[str]:
    names = batch["names"]
    if not names:
        return []
    more = max(0, len(names) - NAMES) + batch["names_cut"]
    rest = [f"  and {more} more"] if more > 0 else []
    return ["Documents:", *(f"  {name}" for name in names[:NAMES]), *rest]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _tokens(histogram: dict[str, Any]) -> list[str]:
    lines = ["", "Tokens that stand out:         in this batch             before"]
    rows = zip(histogram["ids"], histogram["shares"], histogram["shares_before"], strict=True)
    for place, (token, share, before) in enumerate(list(rows)[:TOKENS]):
        text = repr(histogram["texts"][place]) if histogram["texts"] else ""
        bar = "#" * round(BAR * share)
        lines.append(f"  {token:>8} {text:<12.12} {share:>7.2%} {bar:<{BAR}} {before:>7.2%}")
    return lines


def _line(batch: dict[str, Any]) -> str:
    loss, names = batch["sequence_loss"], ", ".join(batch["names"][:2])
    worst = "" if loss is None else f"  worst sequence {float(loss):.4g} nats"
    new = "" if not batch["histogram"] else f"  new tokens {batch['histogram']['bins'][0]:.1%}"
    return f"  step {batch['step']:>8}  rank {batch['rank']:<4}{worst}{new}  {names}".rstrip()
