"""`spikeguard sync DIR`: uploads what attempts without a server left on disk.

The server knows each message by (attempt, number), so a second upload stores nothing twice. An
attempt that is alive holds its outbox's lock and is left alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from spikeguard.uplink.outbox import Outbox, earlier_outboxes, live_attempts
from spikeguard.uplink.sender import stored_or_not, take_up
from spikeguard.uplink.transport import Advice, Transport
from spikeguard_cli.command import CommandFailed, say, warn_of_plain_http
from spikeguard_cli.options import print_json
from spikeguard_protocol import RunId

TIMEOUT_S = 30.0  # connecting, and each read of an answer
TRIES = 5  # that end otherwise, until another message is stored
PAUSE_S = 1.0  # before the second try; doubles

Tell = Callable[[str], None]


def sync(options: Namespace) -> int:
    """Upload everything under `options.directory`."""
    server, token = _server(options)
    warn_of_plain_http(server)
    transport = Transport(server, token, TIMEOUT_S)
    try:
        runs = []
        for home in homes(Path(options.directory)):
            runs.append(_sync_run(home, transport, _progress_line))
            if not options.json:
                say(_end_words(runs[-1]))
        if options.json:
            print_json([asdict(run) for run in runs])
    finally:
        transport.close()
    return 0


def _server(options: Namespace) -> tuple[str, str | None]:
    """Address and token; a person's login will not do, since only agents report."""
    address = options.server or os.environ.get("SPIKEGUARD_SERVER")
    if not address:
        raise CommandFailed("no server is named. Give --server, or set SPIKEGUARD_SERVER")
    file = options.token_file or os.environ.get("SPIKEGUARD_TOKEN_FILE")
    token = os.environ.get("SPIKEGUARD_TOKEN") if not options.token_file else None
    return address.rstrip("/"), token or (Path(file).read_text().strip() if file else None)


def homes(directory: Path) -> list[Path]:
    """The run directories at or below `directory`; raise `CommandFailed` where there are none."""
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is no directory. Give what attach(directory=...) was")
    found = sorted(path.parent for path in directory.rglob("journal.jsonl"))
    if not found:
        raise CommandFailed(
            f"{directory} holds no run: no journal.jsonl in it or below. "
            "Give the directory that attach(directory=...) was given, or one above it"
        )
    return found


def run_of(home: Path) -> RunId:
    """The run whose directory `home` is, as its journal's first line says."""
    journal = home / "journal.jsonl"
    try:
        with journal.open("rb") as file:
            return RunId.parse(json.loads(file.readline())["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CommandFailed(f"{journal} does not begin with the name of its run") from error


def upload(
    outbox: Outbox, transport: Transport, tell: Tell, pause_s: float = PAUSE_S
) -> tuple[int, int]:
    """Send every message of `outbox` in order; raise `CommandFailed` where it cannot go on.

    Returns how many were stored, and of how many a gap, since the server refuses their content.
    """
    sent = refused = failures = newest = 0
    while not outbox.empty and (message := outbox.next_message()) is not None:
        answer = transport.send(message)
        verdict = stored_or_not(answer, message.sequence)
        take_up(verdict, outbox, message.sequence)
        if verdict.advice is Advice.STORED:
            tell(f"{outbox.run} {outbox.attempt}: message {message.sequence} of {outbox.sequence}")
            sent += 1
            if message.sequence > newest:  # a server may ask for earlier ones again and again
                newest, failures = message.sequence, 0
            continue
        failures += 1
        refused += verdict.advice is Advice.GIVE_UP
        if failures == TRIES or verdict is not answer or verdict.advice is Advice.ASK_LATER:
            raise CommandFailed(
                f"the server did not take message {message.sequence} of attempt {outbox.attempt} "
                f"({verdict.reason}). What was stored stays stored: run it again to go on"
            )
        if verdict.advice is Advice.BACK_OFF:
            time.sleep(verdict.retry_after_s or pause_s * 2.0 ** (failures - 1))
    return sent, refused


@dataclass(frozen=True, slots=True)
class SyncedRun:
    """What became of one run's messages."""

    run: str
    messages: int  # uploaded
    refused: int  # of them, those whose content the server refuses: it has a gap in their place
    alive: list[str]  # attempts that run now and were left alone


def _sync_run(home: Path, transport: Transport, tell: Tell) -> SyncedRun:
    run = run_of(home)
    waiting = earlier_outboxes(home / "outbox", run, partial(say, to_error=True))
    ours = {outbox.attempt for outbox in waiting}
    alive = [each for each in live_attempts(home / "outbox") if each not in ours]
    sent = refused = 0
    try:
        for outbox in waiting:
            stored, gaps = upload(outbox, transport, tell)
            sent, refused = sent + stored, refused + gaps
    finally:
        for outbox in waiting:
            outbox.close()
    _progress_line("")
    return SyncedRun(str(run), sent, refused, alive)


def _end_words(done: SyncedRun) -> str:
    sent = f"{done.messages} messages uploaded" if done.messages else "nothing was waiting"
    words = f"{done.run}: {sent}"
    if done.refused:
        words += f", {done.refused} of them as gaps because the server refuses their content"
    if done.alive:
        words += f"; left alone, since it runs: attempt {', '.join(done.alive)}"
    return words


def _progress_line(text: str) -> None:
    """One line that is written over, only for a person to see."""
    if sys.stderr.isatty():
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        print(f"\r{text[:width]:<{width}}\r", end="", file=sys.stderr, flush=True)
