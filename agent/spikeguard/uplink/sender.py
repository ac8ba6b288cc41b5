"""The thread on rank 0 that carries messages to the server and brings orders back.

Its own messages go first, an empty one when there is nothing to say. What killed attempts left goes
in the time between, and delays none of them. It never gives up.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spikeguard.commands.orders import Inbox
from spikeguard.faults import Faults, log
from spikeguard.settings import Connection, Settings
from spikeguard.uplink.outbox import Outbox, earlier_outboxes
from spikeguard.uplink.transport import Advice, Transport, Verdict
from spikeguard_protocol.plain_http import plain_http_warning

FREE_RETURNS = 3  # how often a server may ask for an earlier message before each costs a pause
MOST_FAILURES = 20  # in a row, of a dead attempt's message; then it is the next start's to send
JITTER = random.Random()  # not the job's numbers: a late answer would change what is trained
GRACE_S = 0.4  # twice at most beyond what an ending may take: for the network, then for the disk


def stored_or_not(verdict: Verdict, sequence: int) -> Verdict:
    """`verdict`, or a failure where a 200 acknowledges less than the message that it answers."""
    ack = verdict.ack
    if verdict.advice is not Advice.STORED or ack is None or ack.sequence >= sequence:
        return verdict
    reason = f"the server answers 200 to message {sequence} and says that it stored {ack.sequence}"
    return Verdict(Advice.BACK_OFF, reason)


def take_up(verdict: Verdict, outbox: Outbox, sequence: int) -> None:
    """Have `outbox` hold what the server waits for, by its answer to message `sequence`."""
    expected = verdict.expected
    if verdict.ack is not None and verdict.advice is Advice.STORED:
        outbox.acknowledge(min(verdict.ack.sequence, sequence))
    elif verdict.advice is Advice.GIVE_UP:
        outbox.replace_by_gap(sequence, verdict.reason)
    elif expected is not None and expected < sequence:
        outbox.declare_lost(expected)
    elif expected is not None:
        outbox.acknowledge(expected - 1)


@dataclass(slots=True, eq=False)
class Turn:
    """An outbox, and when it may send next."""

    outbox: Outbox
    due: float = 0.0  # monotonic seconds
    failures: int = 0  # in a row
    returns: int = 0  # to an earlier message, as the server asked


class Sender:
    """Sends `outbox`, and in between those that earlier attempts left."""

    def __init__(
        self,
        transport: Transport,
        outbox: Outbox,
        earlier: Sequence[Outbox],
        inbox: Inbox,
        settings: Settings,
        faults: Faults,
    ) -> None:
        self._transport, self._outbox, self._inbox = transport, outbox, inbox
        self._own, self._earlier = Turn(outbox), [Turn(each) for each in earlier]
        self._settings, self._faults = settings, faults
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spikeguard-sender", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """There is something that should not wait for the next interval."""
        self._wake.set()

    def finish(self, within_s: float) -> bool:
        """Send what is left for at most `within_s`, then end; True if everything arrived."""
        deadline = time.monotonic() + within_s
        self._closing.set()
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._transport.interrupt()
            self._thread.join(GRACE_S)
        self._outbox.close(max(0.0, deadline - time.monotonic()) + GRACE_S, ended=True)
        self._transport.close()
        return self._outbox.empty

    def _run(self) -> None:
        while not self._done():
            pause = self._settings.send_interval_s
            with self._faults.shield("sender"):
                pause = self._send_next()
            if self._closing.is_set() and self._own.failures:
                return  # one try more than this would keep the job from ending
            if self._wake.wait(pause):
                self._own.due = 0.0
            self._wake.clear()

    def _done(self) -> bool:
        if self._outbox.closed:
            return True
        waits = any(not turn.failures for turn in self._earlier)
        return self._closing.is_set() and self._outbox.empty and not waits

    def _send_next(self) -> float:
        """Send the oldest message of who is due; returns the seconds until somebody is."""
        now = time.monotonic()
        done = self._outbox.unbegun or (self._closing.is_set() and self._outbox.empty)
        turns = [] if done else [self._own]
        turns += [] if self._own.failures else self._earlier  # the server may be away
        turn = next((turn for turn in turns if turn.due <= now), None)
        if turn is not None:
            turn.due = now + self._settings.send_interval_s  # whatever is raised
            pause = self._send_one(turn)
            turn.due = time.monotonic() + pause
            turns = [turn for turn in turns if turn is self._own or turn in self._earlier]
        pauses = [turn.due - time.monotonic() for turn in turns]
        return max(0.0, min(pauses, default=self._settings.send_interval_s))

    def _send_one(self, turn: Turn) -> float:
        """Send the oldest message of `turn`; returns the seconds until its next."""
        message = turn.outbox.next_message()
        if message is None:  # nothing is left of it, or finish() waited no longer
            return self._let_go(turn)
        asked_at = time.monotonic()
        verdict = stored_or_not(self._transport.send(message), message.sequence)
        take_up(verdict, turn.outbox, message.sequence)
        if verdict.ack is not None and verdict.advice is Advice.STORED:
            turn.failures = 0
            return self._stored(turn, verdict, asked_at)
        turn.failures += 1
        said = f"message not stored: {self._transport.address}: {verdict.reason}"
        self._faults.note(f"server ({verdict.advice})", said)
        if turn.failures == MOST_FAILURES and turn is not self._own:
            return self._let_go(turn)
        return self._not_stored(turn, message.sequence, verdict)

    def _stored(self, turn: Turn, verdict: Verdict, asked_at: float) -> float:
        outbox = turn.outbox
        if turn is self._own and verdict.ack is not None:
            self._inbox.hear(verdict.ack, asked_at, verdict.unreadable)
        elif outbox.empty:
            self._let_go(turn)
        behind = turn is not self._own or outbox.backlog
        return 0.0 if behind or self._closing.is_set() else self._settings.send_interval_s

    def _let_go(self, turn: Turn) -> float:
        """Of one that a dead attempt left; the seconds to pause."""
        if turn not in self._earlier:
            return self._settings.send_interval_s
        self._earlier.remove(turn)
        turn.outbox.close()
        return 0.0

    def _not_stored(self, turn: Turn, sequence: int, verdict: Verdict) -> float:
        if verdict.expected is not None and verdict.expected < sequence:
            turn.returns += 1  # what is stored between two of them makes none of them good
            return self._pause_before_retry(turn) if turn.returns > FREE_RETURNS else 0.0
        if verdict.advice is Advice.GIVE_UP:
            return self._pause_before_retry(turn) if turn.failures > 3 else 0.0
        if verdict.advice is Advice.ASK_LATER:
            return self._settings.backoff_s
        if verdict.retry_after_s is not None:
            return max(verdict.retry_after_s, self._settings.send_interval_s)
        return self._pause_before_retry(turn)

    def _pause_before_retry(self, turn: Turn) -> float:
        """Doubling, with jitter so that a fleet does not come back at once."""
        longest = self._settings.backoff_s
        pause = self._settings.send_interval_s * 2.0 ** min(turn.failures - 1, 10)
        return min(longest, max(0.05, pause)) * JITTER.uniform(0.5, 1.0)


def open_uplink(
    connection: Connection,
    home: Path,
    attempt: str,
    inbox: Inbox,
    settings: Settings,
    faults: Faults,
) -> tuple[Outbox, Sender | None]:
    """The outbox of `attempt`, and its sender if there is a server; for rank 0.

    Without a server everything waits on disk for `spikeguard sync`, within the same limit. What
    dead attempts left may take half of that limit: whatever is over goes as this attempt begins.
    """
    run, folder, tell = connection.run, home / "outbox", partial(faults.note, "outbox")
    earlier = earlier_outboxes(folder, run, tell)
    for box in earlier:
        while sum(each.size for each in earlier) > settings.outbox_bytes // 2 and box.drop():
            pass
        if box.dropped:
            box.tell_dropped()
    try:
        outbox = Outbox(folder / attempt, run, attempt, settings.outbox_bytes, tell, earlier)
    except (OSError, ValueError) as error:  # it cannot be written or locked (NFS, Lustre)
        tell(error)
        outbox = Outbox(None, run, attempt, settings.outbox_bytes, tell, earlier)
    if connection.server is None:
        log.warning(
            "no server: set SPIKEGUARD_SERVER to have run %s watched. What it measured is in %s: "
            "look at it with spikeguard replay, upload it with spikeguard sync",
            run,
            home,
        )
        for box in earlier:  # free for `spikeguard sync`
            box.close()
        return outbox, None
    warning = plain_http_warning(connection.server, {})  # the environment's word is in settings
    if warning is not None and not settings.allow_plain_http:
        log.warning("%s (or Settings.allow_plain_http)", warning)
    transport = Transport(connection.server, connection.token, settings.timeout_s)
    return outbox, Sender(transport, outbox, earlier, inbox, settings, faults)
