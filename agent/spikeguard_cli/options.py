"""The options that mean the same at every command, and what they print.

`--json` prints one JSON document, `--jsonl` one object a line as it comes. `--limit` says how many
entries, newest or most pressing first, 0 for all of them. `--since` leaves out what is older.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _MutuallyExclusiveGroup
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from spikeguard_cli.command import say
from spikeguard_cli.wording import table

Entry = dict[str, Any]
T = TypeVar("T")
LIMIT = 50
MOST_LIMIT = 2**31 - 1
_LASTS = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def json_option(parser: ArgumentParser) -> None:
    """`--json`, of every command that ends."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def lines_option(parser: ArgumentParser) -> _MutuallyExclusiveGroup:
    """`--json` and `--jsonl`, of a list that may be longer than memory should hold; the group, for
    a form more."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--jsonl", action="store_true", help="print one JSON object a line")
    return form


def limit_option(parser: ArgumentParser, default: int = LIMIT) -> None:
    """`--limit`."""
    parser.add_argument(
        "--limit", type=entry_count, default=default, metavar="N",
        help="how many entries; 0 for all",
    )  # fmt: skip


def since_option(parser: ArgumentParser) -> None:
    """`--since`."""
    parser.add_argument(
        "--since", type=since, metavar="TIME",
        help="only entries since: 15min, 24h, 7d ago, or 2026-03-14[T03:00Z]",
    )  # fmt: skip


def print_json(found: Any) -> None:
    """One document."""
    print(json.dumps(found, indent=1))


def print_list(
    options: Namespace,
    found: list[Entry],
    head: Sequence[str],
    row: Callable[[Entry], list[str]],
    nothing: str,
) -> int:
    """A list for programs, or a table for people."""
    if options.json:
        print_json(found)
    else:
        print(table(head, [row(one) for one in found]) if found else nothing)
    return 0


def told(options: Namespace, answer: Any, said: str) -> int:
    """What a command did: the answer for programs, a sentence for people."""
    if options.json:
        print_json(answer)
    elif getattr(options, "jsonl", False):
        print(json.dumps(answer))
    else:
        say(said)
    return 0


def print_entries(options: Namespace, entries: Iterable[Entry]) -> bool:
    """As `--json` or `--jsonl` asks for them; False where neither was given."""
    if options.jsonl:
        for entry in entries:  # as they come: a list may be long
            print(json.dumps(entry))
    elif options.json:
        print_json(list(entries))
    return bool(options.jsonl or options.json)


def chosen(
    options: Namespace, entries: Iterable[Entry], *times: str, ordered: bool = True
) -> Iterator[Entry]:
    """As many of `entries` as `--limit` says, none older than `--since` by the first of `times`
    that it has. `ordered`: the newest come first, so that none is read behind the first older."""
    recent = entries if options.since is None else _recent(entries, options.since, times, ordered)
    return islice(recent, options.limit or None)


def _recent(
    entries: Iterable[Entry], since: datetime, times: tuple[str, ...], ordered: bool
) -> Iterator[Entry]:
    for entry in entries:
        at = next((entry[name] for name in times if entry.get(name)), None)
        if at is None or datetime.fromisoformat(at) >= since:
            yield entry
        elif ordered:
            return


def most(options: Namespace) -> int:
    """How many entries to ask for: all of them where some of them will be left out."""
    left_out = getattr(options, "since", None) is not None
    return MOST_LIMIT if left_out else options.limit or MOST_LIMIT


def checked(kind: Callable[[str], T], fits: Callable[[T], bool], words: str) -> Callable[[str], T]:
    """A reader of an option's value; one that does not fit is refused in `words`."""

    def read(text: str) -> T:
        with suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise ArgumentTypeError(f"{text!r} {words}")

    return read


entry_count = checked(
    int, lambda n: 0 <= n <= MOST_LIMIT, "is no number of entries: give 1 or more, 0 for all"
)
step_count = checked(int, lambda n: n > 0, "is no number of steps: give 1 or more")
nats = checked(
    float, lambda size: 0.0 < size < 1e6, "is no size of an effect: give nats above 0, such as 0.02"
)


def lasting(text: str) -> float:
    """Seconds of `90s`, `15min`, `2h`, `1d`."""
    found = _LASTS.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ArgumentTypeError(f"{text!r} is no duration: write 90s, 15min, 2h or 1d")
    return float(found[1]) * _SECONDS[found[2]]


def since(text: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> datetime:
    """The moment that `24h` ago was, or the one that is written out; UTC where it says no zone."""
    if _LASTS.fullmatch(text.strip()):
        return _ago(text, now())
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no time: write 15min, 24h or 7d, or 2026-03-14 or 2026-03-14T03:00Z"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _ago(text: str, now: datetime) -> datetime:
    try:
        return now - timedelta(seconds=lasting(text))
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is longer ago than there are dates") from None
