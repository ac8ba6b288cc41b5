"""The commands that show one thing whole: show, watch and open."""

from __future__ import annotations

import json
import shutil
import sys
import time
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.command import Command, CommandFailed, NoServer, client_command, say
from spikeguard_cli.credentials import Credentials, load_credentials
from spikeguard_cli.curve import Curve, drawn
from spikeguard_cli.options import checked, json_option, print_json, step_count, told
from spikeguard_cli.orders import done_lines
from spikeguard_cli.wording import incident_card, quiet_lines, run_card
from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.paths import confirm_path, incident_page_path, incident_path, run_path

POINTS = 2000  # of a curve that is drawn; the server keeps every extreme
HEIGHT = 8  # lines of a curve
Line = dict[int, float | None]  # losses by step
CLEAR = "\x1b[H\x1b[2J"  # home, and an empty screen (ECMA-48)


def show(options: Namespace) -> int:
    """One incident, or one run, on one screen."""
    api = Api(load_credentials())
    if "#" not in options.id:
        run = RunId.parse(options.id)
        return _show_run(api, run, as_json=options.json)
    incident = IncidentId.parse(options.id)
    found = api.get(incident_path(incident))
    if options.json:
        print_json(found)
        return 0
    series = api.get(f"{incident_path(incident)}/series", signals="loss")
    _print(
        [
            *_quiet(api, incident.run, found),
            *incident_card(found),
            "",
            *_curve(series, found["onset_step"], found["segment"]),
        ]
    )
    return 0


def _quiet(api: Api, run: RunId, incident: dict[str, Any]) -> list[str]:
    """That the run of an open incident sends nothing; of one that was deleted meanwhile nothing."""
    if incident["state"] == "closed":
        return []
    try:
        return quiet_lines(api.get(run_path(run)))
    except Refused:
        return []


def _show_run(api: Api, run: RunId, *, as_json: bool) -> int:
    found = api.get(run_path(run))
    if as_json:
        print_json(found)
        return 0
    done = done_lines(api, run)
    _print([*_run_screen(api, run, found, None), *([""] if done else []), *done])
    return 0


def watch(options: Namespace) -> int:
    """A run as it goes on: a screen drawn anew, or a line for each change where there is none."""
    api, run = Api(load_credentials()), RunId.parse(options.run)
    found, seen = api.get(run_path(run)), ()
    while True:
        seen = _look(api, run, found, seen, options)
        if found["state"] == "ended" or options.once:
            return 0
        found = _next_look(api, run, options.every)


def _look(
    api: Api, run: RunId, found: dict[str, Any], seen: tuple[Any, ...], options: Namespace
) -> tuple[Any, ...]:
    """Show the run as `found`; answers with what was shown, so that a line comes once."""
    if sys.stdout.isatty():
        screen = _run_screen(api, run, found, options.steps)
        sys.stdout.write(CLEAR)
        _print(screen)
    elif _standing(found) != seen:
        print(json.dumps(found) if options.json else _line(found), flush=True)
    return _standing(found)


def _next_look(api: Api, run: RunId, every_s: float) -> dict[str, Any]:
    """The run after `every_s`; a server that is away meanwhile is said once and waited for."""
    away = False
    while True:
        time.sleep(every_s)
        try:
            return api.get(run_path(run))
        except NoServer as gone:
            if not away:
                say(f"spikeguard: {gone}. Looking on", to_error=True)
            away = True


def _standing(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["state"], run["last_step"], run["open_incident"], run["waiting_approval"]


def _line(run: dict[str, Any]) -> str:
    return printable("  ".join(run_card(run)[:1]))


def _run_screen(api: Api, run: RunId, found: dict[str, Any], steps: int | None) -> list[str]:
    last = found["last_step"]
    first = max(last - steps + 1, 0) if steps and last is not None else None
    series = api.get(f"{run_path(run)}/series", signals="loss", first=first, points=POINTS)
    number = found["open_incident"]
    if not number:
        return [*run_card(found), "", *_curve(series, None)]
    incident = api.get(incident_path(IncidentId(run, number)))
    curve = _curve(series, incident["onset_step"])
    return [*run_card(found), "", *curve, "", *incident_card(incident)]


def _curve(
    series: dict[str, Any], onset: int | None, began: dict[str, Any] | None = None
) -> list[str]:
    """The loss of the line that is trained now; below it the branch in which a spike `began`, where
    it was undone."""
    segments = [s for s in series["segments"] if s["steps"]]
    if not segments:
        return ["no samples are kept of these steps"]
    kept = _joined(s for s in segments if s["current"])
    at = next((i for i, s in enumerate(segments) if onset is not None and _is(s, began)), None)
    undone: Line = {}
    if at is not None and onset is not None and _left_before(segments, at, onset):
        undone = _joined(segments[at : at + 1])
    marks = {} if onset is None else {onset: f"onset, step {onset}"}
    lines = _drawn("loss", kept, {} if undone else marks)
    lines += _drawn("loss of the branch that was undone", undone, marks)
    return lines or ["no finite loss in these steps"]


def _left_before(segments: list[dict[str, Any]], at: int, onset: int) -> bool:
    """Whether the line that is trained now left that segment before the onset. Curves are thinned,
    so that the onset itself need not be among their steps."""
    later = (s["steps"][0] for s in segments[at + 1 :] if s["current"])
    return not segments[at]["current"] or any(first <= onset for first in later)


def _drawn(name: str, line: Line, marks: dict[int, str]) -> list[str]:
    """A curve under its name; empty where nothing finite was measured."""
    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    curve = Curve([*line], [*line.values()])
    found = drawn(curve, width, HEIGHT, marks)
    return [name, *found] if found else []


def _joined(segments: Iterable[dict[str, Any]]) -> Line:
    """Losses by step: a later segment takes the place of what an earlier one had from its first
    step on."""
    line: Line = {}
    for segment in segments:
        first = segment["steps"][0]
        line = {step: value for step, value in line.items() if step < first}
        columns = zip(segment["steps"], segment["values"]["loss"], strict=True)
        line |= {step: _value(value) for step, value in columns}
    return line


def _is(segment: dict[str, Any], began: dict[str, Any] | None) -> bool:
    if began is None:
        return False
    return (segment["attempt"], segment["number"]) == (began["attempt"], began["number"])


def _value(value: Any) -> float | None:
    """Values that are not finite travel as words."""
    return None if value is None else float(value)


def _print(lines: list[str]) -> None:
    print("\n".join(line.rstrip() for line in lines), flush=True)


_every = checked(
    float, lambda seconds: 0.2 <= seconds <= 3600.0, "is no wait: give 0.2 to 3600 seconds"
)


def _show_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 (quote it), or RUN")
    json_option(parser)


def _watch_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    parser.add_argument("--steps", type=step_count, help="draw the newest N steps (default: all)")
    parser.add_argument("--every", type=_every, default=2.0, help="seconds (default 2)")
    parser.add_argument("--once", action="store_true", help="look once and end")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a line, a line for each change"
    )


def open_page(options: Namespace) -> int:
    """Print where the incident's page is, and show it where there is a browser."""
    used = load_credentials()
    if options.sign_in:
        return _sign_in(Api(used), options)
    if options.id is None:
        raise CommandFailed("open which page? Name an incident, RUN#3, or a RUN")
    incident = _incident(options.id, used)
    url = f"{used.server}{incident_page_path(incident)}"
    told(options, {"id": str(incident), "url": url}, url)
    if not (options.print or options.json):
        with suppress(webbrowser.Error):  # the address stands on the screen
            webbrowser.get().open(url)
    return 0


def _sign_in(api: Api, options: Namespace) -> int:
    """A link that signs a browser in once; on to the page of what is named, where it is."""
    made = api.post("/v1/sessions/links", {"next": _page_of(api, options.id)})
    told(options, made, made["link"])
    print(
        "It signs a browser on the server's machine in, once, within 10 minutes.", file=sys.stderr
    )
    return 0


def _page_of(api: Api, text: str | None) -> str:
    """The page that decides on a command, or on what an incident proposes; that of the incident
    where it proposes nothing."""
    if text is None:
        return ""
    if "." in text.rpartition("#")[2]:
        return confirm_path(CommandId.parse(text))
    incident = IncidentId.parse(text)
    proposal = api.get(incident_path(incident))["proposal"]
    if proposal is None:
        return incident_page_path(incident)
    return confirm_path(CommandId.parse(proposal["id"]))


def _incident(text: str, used: Credentials) -> IncidentId:
    """The one that is named, which has to be there; of a run the newest."""
    if "#" in text:
        incident = IncidentId.parse(text)
        Api(used).get(incident_path(incident))
        return incident
    run = RunId.parse(text)
    found = Api(used).get(run_path(run))
    if not found["incidents"]:
        raise CommandFailed(f"{run} had no spike: `spikeguard show {run}` shows how it trains")
    return IncidentId(run, found["open_incident"] or found["incidents"])


def _open_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="ID", nargs="?",
        help="incident RUN#3 (quote it), or RUN: its open or newest incident",
    )  # fmt: skip
    parser.add_argument(
        "--sign-in", action="store_true",
        help="print a link that signs your browser in, once, and goes on to what incident RUN#3 "
        "proposes, or to command RUN#3.1",
    )  # fmt: skip
    parser.add_argument("--print", action="store_true", help="only print the address")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command(
        "show", "show an incident or a run: what, why, what to do, curve", show, _show_options
    ),
    client_command("open", "open an incident's page in a browser", open_page, _open_options),
    client_command("watch", "follow a run in this terminal until it ends", watch, _watch_options),
)
