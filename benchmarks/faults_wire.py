"""What can happen to a message between a job and its servers.

Law: whatever is done here may happen on a real network, and nothing here tells the job of it: it
learns what an agent would learn, an answer or none.
"""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from benchmarks.faults_job import TrainingJob
from benchmarks.ingest_load import post_of
from spikeguard.uplink.transport import Verdict
from spikeguard_protocol import encode

SHARE = 0.12  # of the messages, to each kind of mischief
OLD = 8  # messages that may come again
MOST_AGE_S = 45.0  # a clock off by more makes a message history, which is another promise


def plainly(job: TrainingJob, message: Any) -> Verdict:
    """To any replica, as a balancer would."""
    return job.line().send(message)


class Mischief:
    """Tears messages, loses answers, sends twice, out of order and late. One for each job."""

    def __init__(self, done: Counter[str] | None = None) -> None:
        self._sent: list[Any] = []
        self.done = Counter[str]() if done is None else done

    def __call__(self, job: TrainingJob, message: Any) -> Verdict:
        """Do something to `message`, then send it as it should be."""
        tricks = (self._tear, self._lose_the_answer, self._repeat, self._send_all_at_once,
                  self._run_ahead)  # fmt: skip
        for trick in tricks:
            if job.random.random() < SHARE:
                self.done[trick.__name__.strip("_").replace("_", " ")] += 1
                trick(job, message)
        late = replace(message, age_s=message.age_s + job.random.uniform(0, MOST_AGE_S))
        self._sent = [*self._sent[-OLD:], message]
        return job.line().send(late)

    def _tear(self, job: TrainingJob, message: Any) -> None:
        request = _request(job, message)
        _post(job, request[: job.random.randrange(1, len(request))])

    def _lose_the_answer(self, job: TrainingJob, message: Any) -> None:
        _post(job, _request(job, message))

    def _repeat(self, job: TrainingJob, message: Any) -> None:
        del message
        for old in job.random.sample(self._sent, min(2, len(self._sent))):
            job.line().send(old)

    def _send_all_at_once(self, job: TrainingJob, message: Any) -> None:
        requests = [(url, _request(job, message)) for url in job.addresses]
        threads = [Thread(target=_post_to, args=pair, kwargs={"hear": True}) for pair in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_ahead(self, job: TrainingJob, message: Any) -> None:
        """By two, so that it leaves a hole even if the one before is being stored just now."""
        verdict = job.line().send(replace(message, sequence=message.sequence + 2))
        assert verdict.ack is None, "a message was taken that left a hole"


def _request(job: TrainingJob, message: Any) -> bytes:
    return post_of(getattr(message, "body", None) or encode(message), job.token)


def _post(job: TrainingJob, data: bytes) -> None:
    _post_to(job.random.choice(job.addresses), data)


def _post_to(url: str, data: bytes, *, hear: bool = False) -> None:
    """Send `data` and hang up, before or after the answer."""
    parts = urlsplit(url)
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), 10) as line:
        line.sendall(data)
        if hear:
            line.recv(65536)
