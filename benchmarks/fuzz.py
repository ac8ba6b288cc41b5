"""What bent requests make of a server: a class 5xx, an undocumented answer, a half-stored message.

One real server process on a real Postgres. First bodies for `POST /v1/messages`, valid and bent,
over several connections; then the database has to hold what was acknowledged, row by row, and
nothing else. Then Schemathesis over every call of the OpenAPI document, each alone with requests
that fit and requests that do not, and in sequences where one call takes what another answered.

    python -m benchmarks.fuzz [--quick] [--bodies N] [--examples N] [--seed N]
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults import database
from benchmarks.faults_site import Site, new_site, preload, running
from benchmarks.fuzz_bodies import Bodies, Expected, Findings
from benchmarks.ingest_load import HOST, Line
from benchmarks.report import command_line, machine, say, show
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.store.engine import open_engine

LINES = 4


@dataclass
class Sender:
    """Sends its own bodies over its own connection."""

    line: Line
    bodies: Bodies
    expected: Expected = field(default_factory=Expected)
    findings: Findings = field(default_factory=Findings)

    def send(self, count: int) -> None:
        """So many bodies, one after the other."""
        for _ in range(count):
            run, body = self.bodies.next()
            status, answer = self._ask(self.line.request(body))
            while status == 429:
                time.sleep(0.2)
                status, answer = self._ask(self.line.request(body))
            self.findings.note(self.expected, run, body, status, answer)

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        try:
            return self.line.ask(request)
        except ConnectionError:  # hung up after an answer that it could not read on from
            self.line.renew()
            return self.line.ask(request)


def fuzz_bodies(site: Site, count: int, seed: int) -> list[Findings]:
    """Send `count` bodies and compare the database with what was acknowledged."""
    port = site.replicas[0].port
    senders = [
        Sender(Line((HOST, port), "/v1/messages", site.token), Bodies(f"{seed}-{number}"))
        for number in range(LINES)
    ]
    with ThreadPoolExecutor(LINES) as pool:
        list(pool.map(lambda sender: sender.send(count // LINES), senders))
    expected = Expected()
    for sender in senders:
        expected.samples |= sender.expected.samples
        expected.layers |= sender.expected.layers
        expected.targets |= sender.expected.targets
        expected.sequences |= sender.expected.sequences
        expected.dropped.update(sender.expected.dropped)
        sender.line.close()
    stored = Findings()
    engine = open_engine(site.replicas[0].settings)
    with engine.connect() as connection:
        stored.compare(connection, expected)
    engine.dispose()
    return [*(sender.findings for sender in senders), stored]


def fuzz_calls(site: Site, examples: int, seed: int) -> dict[str, Any]:
    """Schemathesis, on what the bodies left in the database."""
    from benchmarks.fuzz_calls import Calls  # a second of imports that bodies do not need

    began = time.monotonic()
    engine = open_engine(site.replicas[0].settings)

    def issue(role: Role) -> str:
        with engine.begin() as connection:
            return issue_token(connection, Grant(role, person="Ada"), "benchmark")[0]

    calls = Calls(site.replicas[0].url, issue)
    calls.each_alone(examples, seed)
    calls.in_sequence(examples, 12, seed)
    engine.dispose()
    statuses = Counter[int]()
    for (_, status), count in calls.answers.items():
        statuses[status] += count
    return {
        "operations": len({label for label, _ in calls.answers}),
        "requests": calls.answers.total(),
        "sequences": calls.sequences,
        "requests_on_an_answer": calls.followed,
        "seconds": round(time.monotonic() - began),
        "answers": dict(sorted(statuses.items())),
        "findings": calls.findings,
    }


def measure(options: Namespace) -> dict[str, Any]:
    """Both, on one server."""
    preload()
    with database() as postgres:
        site = new_site(postgres, "fuzzed", 1, requests_per_s=1e6)
        with running(site):
            began = time.monotonic()
            found = fuzz_bodies(site, options.bodies, options.seed)
            statuses = sum((f.statuses for f in found), Counter[int]())
            result: dict[str, Any] = {
                "machine": machine(),
                "bodies": sum(f.bodies for f in found),
                "seconds": round(time.monotonic() - began),
                "answers": dict(sorted(statuses.items())),
                "samples_compared": sum(f.rows for f in found),
                "undocumented": [word for f in found for word in f.undocumented][:20],
                "half_stored": [word for f in found for word in f.half_stored],
            }
            say(str(result))
            result["calls"] = fuzz_calls(site, options.examples, options.seed)
    return result


def main() -> int:
    """Print what was found; 1 where anything was."""
    parser = command_line("fuzz", __doc__, "2,000 bodies, 3 examples a call")
    parser.add_argument("--bodies", type=int, default=100_000, help="of messages")
    parser.add_argument("--examples", type=int, default=100, help="a call, fitting and not")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.bodies, options.examples = 2_000, 3
    result = measure(options)
    show(result, options)
    found = result["undocumented"] or result["half_stored"] or result["calls"]["findings"]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
