"""Prints the addresses once everything is up, and writes the file that a script waits for.

Law: nothing is announced before it answered. The file appears whole or not at all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from urllib.error import URLError
from urllib.request import urlopen

from spikeguard_server.cli.private_files import write_private
from spikeguard_server.cli.up_login import UpCredentials

LOOK_EVERY_S = 0.1
SLOW_S = 60.0
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is to be said, and where."""

    directory: Path
    server: str
    dashboard: str | None
    pages: str  # the dashboard's address in a browser
    login: UpCredentials
    json_ready: Path | None
    as_json: bool = False  # what is said on standard output

    def health(self) -> tuple[str, ...]:
        """The addresses that must answer first."""
        dashboard = () if self.dashboard is None else (f"{self.dashboard}/_stcore/health",)
        return (f"{self.server}/readyz", *dashboard)

    def text(self) -> str:
        """What a person reads."""
        login = self.login
        lines = [
            "",
            "spikeguard is up. Ctrl-C stops everything; the data stays.",
            "",
            *([f"  dashboard   {self.pages}"] if self.dashboard else []),
            f"  server      {self.server}",
            f"  data, logs  {self.directory}",
            "",
            "To decide in the browser, open this; it signs you in once, within 10 minutes:",
            f"  {login.sign_in_link}",
            "  (where a browser does not find spikeguard.localhost, write 127.0.0.1;",
            "  `spikeguard open --sign-in` prints another; or sign in at /login with your name",
            f"  and the token in {login.login_token_file})",
            f"On the command line you are logged in as {login.name}: `{self._first_command()}`.",
            "",
            "For a training job:",
            f"  export SPIKEGUARD_SERVER={self.server}",
            f"  export SPIKEGUARD_TOKEN_FILE={login.agent_token_file}",
            "",
        ]
        return "\n".join(lines)

    def _first_command(self) -> str:
        """Where the command line is logged in at another server, this one has to be named."""
        return ("" if self.login.used else f"SPIKEGUARD_SERVER={self.server} ") + "spikeguard runs"

    def facts(self) -> dict[str, str | None]:
        """What a script reads."""
        return {
            "server": self.server,
            "dashboard": self.dashboard,
            "pages": self.pages if self.dashboard else None,
            "agent_token_file": str(self.login.agent_token_file),
            "login_token_file": str(self.login.login_token_file),
            "sign_in_link": self.login.sign_in_link,
            "credentials": str(self.login.credentials),
            "directory": str(self.directory),
        }


@contextmanager
def announce_when_ready(announcement: Announcement) -> Iterator[None]:
    """Wait beside the server until everything answers, then say so; give up when it ends."""
    over = Event()
    watch = Thread(target=_watch, args=(announcement, over), name="announce", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(ANSWER_S + 1)


def _watch(announcement: Announcement, over: Event) -> None:
    waited_s = 0.0
    while not all(map(_answers, announcement.health())):
        if over.wait(LOOK_EVERY_S):
            return
        waited_s += LOOK_EVERY_S
        if waited_s >= SLOW_S:
            print(f"still starting; the logs are in {announcement.directory}", file=sys.stderr)
            waited_s = 0.0
    if announcement.json_ready is not None:
        write_private(announcement.json_ready, json.dumps(announcement.facts(), indent=1))
    said = json.dumps(announcement.facts()) if announcement.as_json else announcement.text()
    print(said, flush=True)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
