"""`spikeguard replay` and `spikeguard backtest`: detection over logs, offline.

Importing this needs the standard library only, so that help works everywhere.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeguard_cli.command import Command, CommandFailed, say
from spikeguard_cli.extras import install_command
from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_protocol.escaping import printable
from spikeguard_replay.policy_options import assumed_of, configure_policy, policy_from_options

if TYPE_CHECKING:
    from spikeguard_core.policy.settings import Policy
    from spikeguard_replay.judging import DetectorChoice
    from spikeguard_replay.log import Log, LogOptions

DIRECTIONS = ("up", "down", "both")


def _configure_replay(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="a training log: what the job printed, CSV, JSON, TensorBoard, MLflow, W&B's exports; "
        "`-` reads standard input; of a directory the newest log is read",
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curve and the incidents")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--follow", action="store_true",
        help="go on reading while the log grows, and print what is seen as it comes",
    )  # fmt: skip
    group = parser.add_argument_group("instead of guessing")
    group.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="the log's name of a signal, such as loss=train/nll; step=row counts rows; may be "
        "given again",
    )
    group.add_argument("--run", metavar="NAME", help="which one, where a file holds several runs")
    group = parser.add_argument_group("what is judged, and how")
    group.add_argument(
        "--watch", action="append", default=[], metavar="COLUMN=up|down|both",
        help="a column beside the loss that opens an incident where it moves so, such as "
        "reward=down; may be given again",
    )  # fmt: skip
    _configure_set(group.add_argument)
    configure_policy(parser)


def _configure_set(add: Any) -> None:
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of detection, such as threshold=5; may be given again "
        "(docs/reference/detection.md)",
    )  # fmt: skip


def _replay(options: Namespace) -> int:
    from spikeguard_replay.following import follow
    from spikeguard_replay.judging import BATCH, batches, judge
    from spikeguard_replay.listing import findings_listing
    from spikeguard_replay.progress import with_progress
    from spikeguard_replay.reading import read_log

    _check_plot(options)
    policy = None if options.policy is None else policy_from_options(options)
    detection = _detection(options, policy)
    choice, reading = _choice(detection), _reading(options, detection)
    if options.follow:
        if options.json or options.policy is not None or options.plot is not None:
            raise CommandFailed("--follow prints as it goes: leave --json, --plot, --policy out")
        return follow(options.file, reading, choice)
    log = read_log(options.file, reading)
    say(f"spikeguard: {log.described()}", to_error=True)
    portions = with_progress(batches(log), len(log), "samples", every=BATCH)
    findings = judge(log, choice, portions)
    more, text = _advice(options, policy, log, choice)
    if options.json:
        print(json.dumps(findings.plain() | {"read": log.plain()} | more))
    else:
        print(printable(findings_listing(findings, log) + text, keep="\n"))
    if options.plot is not None:
        from spikeguard_replay.drawing import draw_log

        title = Path(log.name).name
        _drawn(options.plot, lambda: draw_log(log, findings, title, options.plot))
    return 0


def _detection(options: Namespace, policy: Policy | None) -> dict[str, Any]:
    """The settings of detection: the policy's, then what `--set` and `--watch` say."""
    found: dict[str, Any] = {**policy.detection} if policy else {}
    found |= {name: values[0] for name, values in map(_values_of, options.set)}
    signals = dict(found.get("signals", {}))
    for one in options.watch:
        name, _, direction = one.rpartition("=")
        if not name or direction not in DIRECTIONS:
            raise CommandFailed(f"--watch {one}: write COLUMN=up, COLUMN=down or COLUMN=both")
        signals[name] = {"direction": direction, "opens": "incident"}
    return found | ({"signals": signals} if signals else {})


def _values_of(written: str, most: int = 1) -> tuple[str, list[float]]:
    """Name and values that one `--set` writes; raises `CommandFailed`."""
    name, _, values = written.partition("=")
    try:
        found = [float(value) for value in values.split(",")]
    except ValueError:
        found = []
    if not 0 < len(found) <= most:
        more = ",VALUE,…" if most > 1 else ""
        raise CommandFailed(f"--set {written}: write NAME=VALUE{more}, of numbers")
    return name, found


def _choice(detection: dict[str, Any]) -> DetectorChoice:
    from spikeguard_replay.judging import choice_of

    return choice_of(detection, "--set, --watch, --policy")


def _reading(options: Namespace, detection: dict[str, Any]) -> LogOptions:
    from spikeguard_replay.log import LogOptions

    columns = dict(_pair(one) for one in options.column)
    watched = tuple(name for name in detection.get("signals", {}) if name not in STANDARD_SIGNALS)
    return LogOptions(columns, options.run, watched)


def _pair(written: str) -> tuple[str, str]:
    ours, _, theirs = written.partition("=")
    if not theirs or ours not in ("step", *STANDARD_SIGNALS):
        raise CommandFailed(
            f"--column {written}: write OURS=THEIRS, OURS one of step, "
            f"{', '.join(sorted(STANDARD_SIGNALS))}"
        )
    return ours, theirs


def _advice(
    options: Namespace, policy: Policy | None, log: Log, choice: DetectorChoice
) -> tuple[dict[str, Any], str]:
    """What the policy would have proposed, for `--json` and as text; nothing if not asked."""
    if policy is None:
        return {}, ""
    from spikeguard_replay.advice import advise, with_pace
    from spikeguard_replay.advice_listing import advice_json, advice_listing
    from spikeguard_replay.judging import samples_of

    samples = samples_of(log)
    assumed = with_pace(assumed_of(options), samples)
    advice = advise(samples, policy, assumed, choice)
    text = "\n" + advice_listing(advice, policy, assumed)
    return {"policy": advice_json(advice, policy, assumed)}, text


def _check_plot(options: Namespace) -> None:
    """Refuse a picture that cannot be drawn, before anything is read."""
    if options.plot is not None and find_spec("matplotlib") is None:
        raise CommandFailed(f"--plot needs matplotlib: {install_command('plot')}")


def _drawn(path: Path, draw: Any) -> None:
    try:
        draw()
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: cannot be written: {error}") from error


def _configure_backtest(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="searched with all its folders, for all formats"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE,VALUE",
        help="a setting of detection and the values to try, such as threshold=4,6,8; may be given "
        "again (docs/reference/detection.md)",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw all curves and the alarms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _backtest(options: Namespace) -> int:
    from spikeguard_replay.backtest import backtest, backtest_json, candidates_of, logs_in
    from spikeguard_replay.backtest_listing import table
    from spikeguard_replay.progress import with_progress

    _check_plot(options)
    candidates = candidates_of([_values_of(one, most=50) for one in options.set])
    paths = logs_in(options.folder)
    tried = backtest(paths, options.folder, candidates)
    logs = list(with_progress(tried, len(paths), "files"))
    if options.json:
        print(json.dumps(backtest_json(logs, candidates)))
    else:
        print(table(logs, candidates))
    if options.plot is not None:
        from spikeguard_replay.drawing import draw_backtest

        _drawn(options.plot, lambda: draw_backtest(logs, candidates, options.plot))
    return 0 if any(one.unread is None for one in logs) else 1


COMMANDS: tuple[Command, ...] = (
    Command(
        "replay", "run detection over a training log, offline", _replay, _configure_replay,
        "replay", ("numpy",),
    ),
    Command(
        "backtest", "count the incidents of every training log in a folder, offline", _backtest,
        _configure_backtest, "replay", ("numpy",),
    ),
)  # fmt: skip
REPLAY, BACKTEST = COMMANDS
