"""The thread on rank 0 that carries messages to the server and brings orders back.

It first sends what a killed attempt left, then its own messages, and polls with an empty one when
there is nothing to say.

Invariants
- It shares no lock with the loop, waits as long as it likes, and never gives up: a server that is
  absent, slow, lying or hung costs the run nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from spikeguard.commands.inbox import ATTENTIVE_S, Inbox
from spikeguard.faults import Faults
from spikeguard.settings import Settings
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.transport import Advice, Transport, Verdict

FREE_RETURNS = 3  # how often a server may ask for an earlier message before each costs a pause
GRACE_S = 0.4  # twice at most beyond what an ending may take: for the network, then for the disk


def stored_or_not(verdict: Verdict, sequence: int) -> Verdict:
    """`verdict`, or a failure where a 200 acknowledges less than the message that it answers."""
    ack = verdict.ack
    if verdict.advice is not Advice.STORED or ack is None or ack.sequence >= sequence:
        return verdict
    reason = f"the server answers 200 to message {sequence} and says that it stored {ack.sequence}"
    return Verdict(Advice.BACK_OFF, reason)


class Sender:
    """Sends `outbox`, after those that earlier attempts left."""

    def __init__(
        self,
        transport: Transport,
        outbox: Outbox,
        orphans: Sequence[Outbox],
        inbox: Inbox,
        settings: Settings,
        faults: Faults,
    ) -> None:
        self._transport, self._outbox, self._inbox = transport, outbox, inbox
        self._orphans = list(orphans)
        self._settings, self._faults = settings, faults
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failures = 0
        self._returns = 0  # to an earlier message, as the server asked
        self._wait_s: float | None = None  # while a decision may come
        self._listener: threading.Thread | None = None
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
        if self._thread.is_alive() or self._listener is not None:
            self._transport.interrupt()
            self._thread.join(GRACE_S)
        self._outbox.close(max(0.0, deadline - time.monotonic()) + GRACE_S, ended=True)
        self._transport.close()
        return self._outbox.empty

    def _run(self) -> None:
        while not self._done():
            pause = self._settings.send_interval_s
            with self._faults.shield("sender"):
                pause = self._send_one()
            if self._closing.is_set() and self._failures:
                return  # one try more than this would keep the job from ending
            self._wake.wait(pause)
            self._wake.clear()

    def _done(self) -> bool:
        if self._outbox.closed:
            return True
        return self._closing.is_set() and self._outbox.empty and not self._orphans

    def _send_one(self) -> float:
        """Send the oldest message; returns the seconds to pause."""
        outbox = self._orphans[0] if self._orphans else self._outbox
        if outbox.unbegun:
            return self._settings.send_interval_s
        message = outbox.next_message()
        if message is None:  # nothing is left of it, or finish() waited no longer
            return self._let_go(outbox)
        asked_at = time.monotonic()
        verdict = stored_or_not(self._transport.send(message), message.sequence)
        self._failures = 0 if verdict.advice is Advice.STORED else self._failures + 1
        if verdict.advice is Advice.STORED and verdict.ack is not None:
            sequence = min(verdict.ack.sequence, message.sequence)
            return self._stored(outbox, sequence, verdict, asked_at)
        self._faults.note(f"server ({verdict.advice})", f"message not stored: {verdict.reason}")
        return self._not_stored(outbox, message.sequence, verdict)

    def _stored(self, outbox: Outbox, sequence: int, verdict: Verdict, asked_at: float) -> float:
        outbox.acknowledge(sequence)
        if outbox is self._outbox and verdict.ack is not None:
            asked_s = ATTENTIVE_S if verdict.ack.attentive else -1.0
            outbox.watched_until = time.monotonic() + asked_s
            self._inbox.hear(verdict.ack, asked_at, verdict.unreadable)
            self._attend(verdict.wait_s)
        elif outbox.empty:
            self._let_go(outbox)
        behind = outbox is not self._outbox or outbox.backlog
        return 0.0 if behind or self._closing.is_set() else self._settings.send_interval_s

    def _let_go(self, outbox: Outbox) -> float:
        """Of one that a dead attempt left, once it is empty; the seconds to pause."""
        if outbox not in self._orphans:
            return self._settings.send_interval_s
        self._orphans.remove(outbox)
        outbox.close()
        return 0.0

    def _attend(self, wait_s: float | None) -> None:
        """Wait for a decision beside the messages, as long as the server says it may come."""
        self._wait_s = wait_s
        if wait_s and self._listener is None and not self._closing.is_set():
            self._listener = threading.Thread(
                target=self._listen, name="spikeguard-listener", daemon=True
            )
            self._listener.start()

    def _listen(self) -> None:
        with self._faults.shield("listener"):
            while (wait_s := self._wait_s) and not self._closing.is_set():
                began = time.monotonic()
                heard = self._transport.wait_for_order(self._outbox.run, wait_s)
                if heard:
                    self.wake()
                too_soon = time.monotonic() - began < self._settings.send_interval_s
                if heard or heard is None or too_soon:  # what was heard is fetched first
                    self._closing.wait(self._settings.send_interval_s)
        self._listener = None

    def _not_stored(self, outbox: Outbox, sequence: int, verdict: Verdict) -> float:
        if verdict.advice is Advice.RESUME_FROM and verdict.expected is not None:
            if verdict.expected < sequence:
                outbox.declare_lost(verdict.expected)
                self._returns += 1  # what is stored between two of them makes none of them good
                return self._pause_before_retry() if self._returns > FREE_RETURNS else 0.0
            outbox.acknowledge(verdict.expected - 1)
        if verdict.advice is Advice.GIVE_UP:
            outbox.replace_by_gap(sequence, verdict.reason)
            return self._pause_before_retry() if self._failures > 3 else 0.0
        if verdict.advice is Advice.ASK_LATER:
            return self._settings.backoff_s
        if verdict.retry_after_s is not None:
            return max(verdict.retry_after_s, self._settings.send_interval_s)
        return self._pause_before_retry()

    def _pause_before_retry(self) -> float:
        """Doubling, with jitter so that a fleet does not come back at once."""
        longest = self._settings.backoff_s
        pause = self._settings.send_interval_s * 2.0 ** min(self._failures - 1, 10)
        return min(longest, max(0.05, pause)) * random.uniform(0.5, 1.0)
