"""Every setting of detection and proposals, as a page: `python -m benchmarks.settings_page`.

Writes docs/settings.md anew from the code: names, defaults, limits, and the comments beside them. A
test holds that it does not differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from spikeguard_server.detectors import DEFAULT, GENERAL, SHIPPED
from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.detectors.contract import Setting
from spikeguard_server.domain.policy import DEFAULT_POLICY, LIMITS, Policy

PAGE = Path(__file__).parent.parent / "docs/settings.md"
FIELD = re.compile(r"^    (\w+): [^=]+(?:= (.+?))?  # (.+)$", re.MULTILINE)
ELSEWHERE = {  # settings that are tables of their own: where they are described
    "detection": "who judges the loss, and how: the settings above",
    "approval": "who says yes to each verb: [policy.md](policy.md#who-says-yes)",
    "rules": "the project's own: [policy.md](policy.md#a-projects-own-rules)",
    "remedies": "by cause: [policy.md](policy.md#the-remedies)",
    "quiet": "hours in which messages wait: [policy.md](policy.md#quiet-hours)",
    "halted": "the kill switch, which no import changes",
}
HEAD = """# Settings

Made from the code by `python -m benchmarks.settings_page`. A number that is none, an unknown name
or a value outside its range is refused with the field, its limit and what to write instead.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, kind in SHIPPED.items():
        usual = ", the default" if name == DEFAULT else ""
        parts += [f"## Detector `{name}`{usual}\n", _declared(kind.settings)]
    parts += ["## With every detector\n", _declared(GENERAL)]
    parts += ["## Policy\n", "What they do: [policy.md](policy.md).\n", _table(_policy())]
    parts += ["## Constants of detection\n", CONSTANTS, _table(_constants())]
    return "\n".join(parts)


CONSTANTS = """Internal: the same for every run, changed with the code. The settings above move some
of them.
"""


def _declared(settings: Sequence[Setting]) -> str:
    rows = [
        (
            f"`{one.name}`", f"{one.default:,.10g}", f"{one.least:,.10g} to {one.most:,.10g}",
            one.unit + (", whole" if one.whole else ""), one.meaning,
        )
        for one in settings
    ]  # fmt: skip
    return _table([("setting", "default", "range", "unit", "meaning"), *rows])


def _policy() -> list[tuple[str, ...]]:
    comments = {name: comment for name, _, comment in _commented(Policy)} | ELSEWHERE
    rows: list[tuple[str, ...]] = [("setting", "default", "range", "meaning")]
    for one in fields(Policy):
        if one.name in ("version", "scope"):  # no setting: where it was found
            continue
        default = getattr(DEFAULT_POLICY, one.name)
        limits = LIMITS.get(one.name)
        rows.append((
            f"`{one.name}`",
            _shown(default),
            f"{limits[0]:,.10g} to {limits[1]:,.10g}" if limits else "",
            comments[one.name],
        ))  # fmt: skip
    return rows


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ", ".join(f"{one:.3g}" for one in default)
    if isinstance(default, int | float) and not isinstance(default, bool):
        return f"{default:,.10g}"
    return default if isinstance(default, str) else ""


def _constants() -> list[tuple[str, ...]]:
    rows = [(f"`{name}`", value, comment) for name, value, comment in _commented(DetectionSettings)]
    assert len(rows) == len(fields(DetectionSettings)), "each stands on a line, with its meaning"
    return [("constant", "value", "meaning"), *rows]


def _commented(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, default, comment) of the fields that have a comment."""
    return (found.groups("") for found in FIELD.finditer(inspect.getsource(kind)))  # type: ignore[misc]


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))


if __name__ == "__main__":
    PAGE.write_text(page())
