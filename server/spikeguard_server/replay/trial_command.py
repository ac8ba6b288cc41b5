"""`spikeguard backtest DIR --compare …` and `spikeguard tune DIR`: detectors tried on many logs.

Law: importing this needs the standard library only.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from spikeguard_cli.command import Command, CommandFailed
from spikeguard_protocol.escaping import printable
from spikeguard_server.replay.detector_options import (
    Chosen,
    chosen_by,
    configure_detector,
    detector_choice,
    number_of,
)

if TYPE_CHECKING:
    from spikeguard_server.replay.labels import Labels
    from spikeguard_server.replay.trial import Candidate, DetectorTally, InjectedSpike, Tried

PROCESSES = 2
MOST = 200  # combinations of settings
USUAL_SWEEP = ("threshold=3,4,5,6,8,10,15", "confirm_rows=1,2,3")
USUAL_BAND = "band=2,3,4"  # what every detector has


def configure_trial(parser: ArgumentParser) -> None:
    """Add the options that say what is injected, and what was marked, to `parser`."""
    group = parser.add_argument_group("what has to be found")
    group.add_argument(
        "--size", type=float, default=6.0, metavar="DEVIATIONS",
        help="height of the injected spikes, in robust deviations of the 64 rows before (6)",
    )  # fmt: skip
    group.add_argument(
        "--length", type=int, default=10, metavar="ROWS", help="of an injected spike (10)"
    )
    group.add_argument(
        "--labels", type=Path, metavar="CSV", help="real spikes: file,onset_step,last_step a line"
    )
    group.add_argument("--plot", type=Path, metavar="PNG", help="draw alarms against spikes found")


def compare(options: Namespace, paths: Sequence[Path]) -> int:
    """Try each detector of `options.compare`, with its defaults and what `--set` says of it."""
    given = dict(number_of(one) for one in options.set)
    candidates = [_candidate({"detector": name, **given}) for name in options.compare]
    named = [[one.name] for one in candidates]
    return _show(options, paths, ("detector",), named, candidates)


def _run(options: Namespace) -> int:
    from spikeguard_server.replay.backtest_command import logs_in

    chosen = chosen_by(options)
    swept = _swept(options.sweep or _usual_sweep(chosen))
    combined = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    if len(combined) > MOST:
        raise CommandFailed(
            f"--sweep: {len(combined)} combinations, {MOST} at most: sweep fewer values"
        )
    candidates = [_candidate({**chosen, **one}) for one in combined]
    named = [[f"{value:g}" for value in one.values()] for one in combined]
    return _show(options, logs_in(options.folder), tuple(swept), named, candidates)


def _usual_sweep(chosen: Chosen) -> list[str]:
    """The settings that matter to most, as far as the detector has them."""
    from spikeguard_server.detectors import DEFAULT, settings_with

    known = {one.name for one in settings_with(str(chosen.get("detector", DEFAULT)))}
    return [one for one in USUAL_SWEEP if one.partition("=")[0] in known] or [USUAL_BAND]


def _swept(written: Sequence[str]) -> dict[str, list[float]]:
    found = dict[str, list[float]]()
    for one in written:
        name, _, values = one.partition("=")
        try:
            found[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise CommandFailed(f"--sweep {one}: write NAME=VALUE,VALUE,…") from None
    return found


def _candidate(chosen: Chosen) -> Candidate:
    from spikeguard_server.detectors import DEFAULT
    from spikeguard_server.replay.trial import Candidate

    settings = {key: float(value) for key, value in chosen.items() if key != "detector"}
    return Candidate(str(chosen.get("detector", DEFAULT)), detector_choice(chosen), settings)


def _show(
    options: Namespace, paths: Sequence[Path], head: Sequence[str],
    named: Sequence[Sequence[str]], candidates: Sequence[Candidate],
) -> int:  # fmt: skip
    from spikeguard_server.replay.progress import with_progress
    from spikeguard_server.replay.trial import InjectedSpike, summed
    from spikeguard_server.replay.trial_listing import trial_listing

    if not 0.0 < options.size < 1e6 or not 1 <= options.length <= 200:
        raise CommandFailed("--size is more than 0 deviations, --length 1 to 200 rows")
    spike = InjectedSpike(options.size, options.length)
    labels = _labels(options)
    tried = list(
        with_progress(_all(paths, options.folder, candidates, spike, labels), len(paths), "files")
    )
    tallies = summed(tried, candidates)
    if options.json:
        print(json.dumps(_plain(candidates, tallies, tried)))
    else:
        print(printable(trial_listing(head, named, tallies, tried, spike), keep="\n"))
    if options.plot is not None:
        _draw(options.plot, head, named, tallies, spike)
    return 0 if any(one.unread is None for one in tried) else 1


def _labels(options: Namespace) -> Labels:
    from spikeguard_server.replay.labels import read_labels

    return {} if options.labels is None else read_labels(options.labels)


def _all(
    paths: Sequence[Path], folder: Path, candidates: Sequence[Candidate], spike: InjectedSpike,
    labels: Labels,
) -> Iterator[Tried]:  # fmt: skip
    from spikeguard_server.replay.trial import try_log

    names = [str(path.relative_to(folder)) for path in paths]
    if unknown := sorted(labels.keys() - set(names)):
        raise CommandFailed(
            f"--labels: {unknown[0]} is no log below {folder}: write names as backtest lists them"
        )
    tasks = (paths, names, repeat(candidates), repeat(spike), [labels.get(n, ()) for n in names])
    if len(paths) < PROCESSES:
        yield from map(try_log, *tasks)
        return
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(try_log, *tasks)


def _plain(
    candidates: Sequence[Candidate], tallies: Sequence[DetectorTally], tried: Sequence[Tried]
) -> Mapping[str, object]:
    return {
        "candidates": [
            {"detector": one.name, "settings": dict(one.settings), **tally.plain()}
            for one, tally in zip(candidates, tallies, strict=True)
        ],
        "read": sum(one.unread is None for one in tried),
        "unread": [{"file": one.file, "why": one.unread} for one in tried if one.unread],
    }


def _draw(
    path: Path,
    head: Sequence[str],
    named: Sequence[Sequence[str]],
    tallies: Sequence[DetectorTally],
    spike: InjectedSpike,
) -> None:
    from spikeguard_server.replay.trial_listing import draw_trial

    try:
        draw_trial(head, named, tallies, spike, path)
    except ImportError as error:
        raise CommandFailed(
            f"--plot needs {error.name}: pip install 'spikeguard[replay]'"
        ) from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: cannot be written: {error}") from error


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="your own logs, searched with all its folders"
    )
    configure_detector(parser)
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=VALUE,VALUE",
        help="a setting and what to try; again for another one (default: threshold, confirm_rows)",
    )  # fmt: skip
    configure_trial(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


TUNE = Command(
    name="tune",
    summary="try settings of a detector on your own logs: alarms against spikes found, offline",
    run=_run,
    configure=_configure,
)
