"""`spikeguard replay` and `spikeguard backtest`: detection over logs, offline.

Importing this needs the standard library only, so that help works everywhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, Final

from spikeguard_cli.command import Command, CommandFailed, read_toml, say
from spikeguard_cli.extras import install_command
from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_protocol.escaping import printable

if TYPE_CHECKING:
    from spikeguard_core.monitor.state import DetectorChoice
    from spikeguard_core.policy.settings import Policy
    from spikeguard_replay.log import LogOptions

EVERY_S: Final = 1.0  # between two looks at a log that grows, and ten times what a look takes


def _configure_replay(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="a training log: what the job printed, CSV, JSON, TensorBoard, MLflow, W&B's exports; "
        "`-` reads standard input; of a directory the newest log is read",
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curve and the incidents")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
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
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of detection, such as threshold=5; may be given again "
        "(docs/reference/detection.md)",
    )  # fmt: skip
    group = parser.add_argument_group("what the policy would have proposed (nothing is done)")
    group.add_argument(
        "--policy", metavar="FILE", help="a policy as TOML, or `default` for the built-in one"
    )
    group.add_argument(
        "--checkpoint-every",
        type=int,
        default=1_000,
        metavar="STEPS",
        help="assume a checkpoint every so many steps (default 1000; 0: none)",
    )
    group.add_argument(
        "--step-time", type=float, metavar="SECONDS", help="time of one step (default: as logged)"
    )


def _replay(options: Namespace) -> int:
    from spikeguard_replay.judging import choice_of, findings_listing, judge, samples_of
    from spikeguard_replay.log import LogOptions
    from spikeguard_replay.reading import read_log

    drawing = _drawing(options)
    if options.checkpoint_every < 0:
        raise CommandFailed("--checkpoint-every takes steps, 0 or more: 0 = no checkpoint")
    if options.step_time is not None and not 0 < options.step_time < 1e9:
        raise CommandFailed("--step-time takes seconds, more than 0: leave it out if unknown")
    policy = None if options.policy is None else _policy(options.policy)
    detection = _detection(options, policy)
    choice = choice_of(detection, "--set, --watch, --policy")
    watched = [name for name in detection.get("signals", {}) if name not in STANDARD_SIGNALS]
    reading = LogOptions(dict(map(_column, options.column)), options.run, watched)
    if options.follow:
        if options.json or options.policy is not None or options.plot is not None:
            raise CommandFailed("--follow prints as it goes: leave --json, --plot, --policy out")
        return _follow(options.file, reading, choice)
    log = read_log(options.file, reading)
    say(f"spikeguard: {log.described()}", to_error=True)
    findings = judge(log, choice)
    plain = {"samples": len(log), **findings.plain(), "read": log.plain()}
    listing = findings_listing(findings, log)
    if policy is not None:
        from spikeguard_replay.advice import advice_listing, advise

        every, pace = options.checkpoint_every, options.step_time
        plain["policy"] = advise(samples_of(log), policy, every, pace, choice)
        listing += f"\n{advice_listing(plain['policy'])}"
    print(json.dumps(plain) if options.json else printable(listing, keep="\n"))
    if drawing is not None:
        drawing.draw_log(log, findings, options.plot)
    return 0


class _Follower:
    """One growing log, which is read anew at each look, and what was told of it."""

    def __init__(self, path: Path, options: LogOptions, choice: DetectorChoice) -> None:
        self._path, self._options, self._choice = path, options, choice
        self._columns: object = None
        self._told: list[str] = []

    def follow(self, ended: Event) -> None:
        """Look again and again, until the log has `ended`."""
        pause = 0.0
        while not ended.wait(pause):
            began = time.monotonic()
            try:
                self.look(grows=True)
            except (CommandFailed, OSError):  # the first lines of a log often hold no loss yet
                if self._columns is not None:
                    raise
            pause = max(EVERY_S, 10 * (time.monotonic() - began))

    def look(self, *, grows: bool) -> str:
        """Judge what stands there, but for a last row whose line still `grows`, and print what
        changed; returns where the run stands."""
        from spikeguard_replay.judging import incident_lines, judge, state_at_end
        from spikeguard_replay.reading import read_log

        log = read_log(self._path, self._options)
        if grows and _is_unfinished(Path(log.name)):
            log.steps = log.steps[:-1]
            log.signals = {name: one.at(slice(-1)) for name, one in log.signals.items()}
        if log.columns != self._columns:
            self._columns = log.columns
            say(f"spikeguard: {log.described()}", to_error=True)
        findings = judge(log, self._choice)
        told = [incident_lines(n, one) for n, one in enumerate(findings.incidents, start=1)]
        for number, text in enumerate(told):
            if self._told[number : number + 1] != [text]:
                print(printable(text, keep="\n"), flush=True)
        self._told = told
        return state_at_end(findings, log)


def _follow(path: Path, options: LogOptions, choice: DetectorChoice) -> int:
    """Follow a log until interrupted, or standard input to its end."""
    ended = Event()
    with NamedTemporaryFile(prefix="standard-input-", buffering=0) as copy:
        if path == Path("-"):
            path = Path(copy.name)
            Thread(target=_copy, args=(copy, ended), daemon=True).start()
        follower = _Follower(path, options, choice)
        with suppress(KeyboardInterrupt):
            follower.follow(ended)
        print(f"\n{follower.look(grows=False)}", flush=True)
    return 0


def _copy(copy: IO[bytes], ended: Event) -> None:
    """Standard input as it comes, to a file that can be read anew."""
    while data := os.read(sys.stdin.fileno(), 2**16):
        copy.write(data)
    ended.set()


def _is_unfinished(path: Path) -> bool:
    """Whether the job is in the middle of a line: its number may go on."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() not in (b"\n", b"\r", b"\0")


def _detection(options: Namespace, policy: Policy | None) -> dict[str, Any]:
    """The settings of detection: the policy's, then what `--set` and `--watch` say."""
    found: dict[str, Any] = {**policy.detection} if policy else {}
    found |= {name: values[0] for name, values in map(_values_of, options.set)}
    found["signals"] = signals = {**found.get("signals", {})}
    for one in options.watch:
        name, _, direction = one.rpartition("=")
        if not name:
            raise CommandFailed(f"--watch {one}: write COLUMN=up, COLUMN=down or COLUMN=both")
        signals[name] = {"direction": direction, "opens": "incident"}
    return found


def _values_of(written: str, more: str = "") -> tuple[str, list[float]]:
    """Name and values that one `--set` writes, of `more` than one; raises `CommandFailed`."""
    name, _, values = written.partition("=")
    try:
        return name, [float(value) for value in (values.split(",") if more else [values])]
    except ValueError:
        raise CommandFailed(f"--set {written}: write NAME=VALUE{more}, of numbers") from None


def _column(written: str) -> tuple[str, str]:
    """Our name of a signal and the log's, as `--column` writes them; raises `CommandFailed`."""
    ours, _, theirs = written.partition("=")
    if not theirs or ours not in ("step", *STANDARD_SIGNALS):
        raise CommandFailed(
            f"--column {written}: write OURS=THEIRS, OURS one of step, "
            f"{', '.join(sorted(STANDARD_SIGNALS))}"
        )
    return ours, theirs


def _policy(file: str) -> Policy:
    """The policy in a file, or the built-in one; raises `CommandFailed`."""
    from spikeguard_core.policy.settings import DEFAULT_POLICY, policy_from_mapping
    from spikeguard_core.setting_fields import SettingError

    try:
        return DEFAULT_POLICY if file == "default" else policy_from_mapping(read_toml(Path(file)))
    except SettingError as error:
        raise CommandFailed(f"--policy {file}: {error}") from error


def _drawing(options: Namespace) -> Any:
    """What draws, where a picture is asked for; raises `CommandFailed` before anything is read."""
    if options.plot is None:
        return None
    try:
        from spikeguard_replay import drawing
    except ImportError as error:
        raise CommandFailed(f"--plot needs matplotlib: {install_command('plot')}") from error
    return drawing


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
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _backtest(options: Namespace) -> int:
    from spikeguard_replay.backtest import backtest, candidates_of, summaries, table
    from spikeguard_replay.reading import logs_under

    drawing = _drawing(options)
    candidates = candidates_of([_values_of(one, ",VALUE,…") for one in options.set])
    if not (paths := logs_under(options.folder)):
        raise CommandFailed(f"{options.folder}: no file in it: name a folder of training logs")
    logs = backtest(paths, options.folder, candidates)
    tried = summaries(logs, candidates)
    if options.json:
        print(json.dumps(tried[0] if len(tried) == 1 else {"candidates": tried}))
    else:
        print(table(tried))
    if drawing is not None:
        drawing.draw_backtest(logs, candidates, options.plot)
    return 0 if any(one.unread is None for one in logs) else 1


REPLAY = Command(
    "replay", "run detection over a training log, offline", _replay, _configure_replay,
    "replay", ("numpy",),
)  # fmt: skip
BACKTEST = Command(
    "backtest", "count the incidents of every training log in a folder, offline", _backtest,
    _configure_backtest, "replay", ("numpy",),
)  # fmt: skip
