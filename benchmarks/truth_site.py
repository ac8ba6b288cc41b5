"""Where the rows come from: one server, the twins of the seeds, a person who is late.

Real processes: `spikeguard up` with its embedded Postgres, a webhook's receiver, one training job a
row that the agent watches over HTTP, and a person who approves a given number of training steps
after the proposal. Everything that a person can read is kept as text with the step at which it was
read; nothing is judged here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from csv import DictReader
from dataclasses import asdict, dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

from benchmarks.http_server import Answer, Request, answering, page
from benchmarks.truth_cases import Case
from benchmarks.truth_job import UPDATES
from spikeguard_cli.api import Api, Refused
from spikeguard_cli.credentials import Credentials
from spikeguard_cli.wording import incident_card, proposal_words
from spikeguard_protocol import IncidentId
from spikeguard_protocol.paths import incident_page_path
from spikeguard_trainer.demo.demo import last_row
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Job, Service, awaiting


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the runs are, in steps."""

    fault: int = 330  # the step at which the first fault comes
    steps: int = 850  # of every run, a decision 350 steps late included; those that go back add
    step_time_s: float = 0.02  # the pace: "100 steps later" is 2 s, long enough to look
    batch: int = 36  # sequences a step


QUICK = Lengths(fault=160, steps=360, step_time_s=0.015)
SIZE = ("--preset", "tiny", "--checkpoint-every", "25", "--keep", "40")
SEND_INTERVAL_S = 0.15
LOOK_EVERY_S = 0.25
LIMIT_S = 400.0
REPORT_LIMIT_S = 20.0
READING_STEPS = 60  # from reading a proposal to pressing the button under what was read
PRICE_PER_HOUR = 360.0  # ten cents a second: rounding does not hide the figure
JOB = "benchmarks.truth_job"
THREADS = {"OMP_NUM_THREADS": "1"}


@dataclass
class Text:
    """Something that a person read."""

    where: str  # page, terminal, message, post-mortem ...
    at_step: int  # newest trained step when it was read; -1 = after the run
    words: str
    trained: int = 0  # steps trained by then, those that were rolled back included
    topics: list[str] = field(default_factory=list)  # of a message: what happened
    incident: str = ""  # what it is about


@dataclass
class Decision:
    """What the late person did."""

    command: str
    verb: str
    arguments: dict[str, Any]
    reason: str
    cost: dict[str, Any]
    proposed_step: int  # newest trained step when it was first seen
    decided_step: int | None = None
    decided_trained: int | None = None  # rows of the step log by then
    read_step: int | None = None  # when it was read last
    refusals: list[str] = field(default_factory=list)  # of what was read
    pace_s: list[float] = field(default_factory=list)  # every `cost.seconds` read per step


@dataclass
class Record:
    """One row: what happened, and what was said of it."""

    case: str
    seed: int
    delay: int
    fault_step: int
    steps: list[dict[str, float]] = field(default_factory=list)
    updates: list[tuple[float, int]] = field(default_factory=list)  # clock, weights changed
    incidents: list[dict[str, Any]] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)  # rows trained when the job was killed
    seconds: float = 0.0

    def save(self, file: Path) -> None:
        """As JSON; non-finite numbers as Python writes them."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Record:
        """What `save` wrote."""
        plain = json.loads(file.read_text())
        plain["texts"] = [Text(**text) for text in plain["texts"]]
        plain["decisions"] = [Decision(**one) for one in plain["decisions"]]
        plain["updates"] = [(at, changed) for at, changed in plain["updates"]]
        return cls(**plain)


@dataclass
class Inbox:
    """The messages that the server sent, by run."""

    url: str = ""
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # with the clock

    def of(self, run: str) -> list[tuple[float, dict[str, Any]]]:
        """What came about one run, in order."""
        return [(at, message) for at, message in self.messages if message["run"] == run]


@contextmanager
def receiving() -> Iterator[Inbox]:
    """A webhook's receiver while the block runs."""
    inbox = Inbox()

    def answer(request: Request) -> Answer:
        inbox.messages.append((time.time(), request.json()))
        return 202, {}, b""

    with answering(answer) as address:
        inbox.url = f"{address}/hook"
        yield inbox


class Site:
    """The server with its inbox, the twins, and the rows."""

    def __init__(
        self,
        directory: Path,
        service: Service,
        inbox: Inbox,
        children: Children,
        lengths: Lengths,
    ) -> None:
        self.directory, self.service, self.inbox = directory, service, inbox
        self.children, self.lengths = children, lengths

    @classmethod
    @contextmanager
    def started(cls, directory: Path, lengths: Lengths) -> Iterator[Site]:
        """Everything up, with a price and a channel; all of it ends with the block."""
        children = Children()
        try:
            with receiving() as inbox:
                place = directory / "service"
                environment = {"SPIKEGUARD_NOTIFY_NETWORKS": "127.0.0.0/8"}
                service = Service.start(children, place, "--no-dashboard", environment=environment)
                _configure(service, place, inbox)
                yield cls(directory, service, inbox, children, lengths)
        finally:
            children.end()

    def twin(self, seed: int) -> list[dict[str, float]]:
        """The steps of the same run without a fault and without a server."""
        place = self.directory / f"twin-{seed}"
        if not (place / "summary.json").exists():
            job = self._start(place, seed, "twin", (), {})
            if job.process.wait(LIMIT_S) != 0:
                raise RuntimeError(f"the twin of seed {seed} failed: see {place}")
        return _steps(place)

    def row(self, case: Case, seed: int, delay: int) -> Record:
        """Train one run to its end, the person deciding `delay` steps after each proposal."""
        record = Record(case.name, seed, delay, self.lengths.fault)
        run = _run_name(case.name, seed, delay)
        place = self.directory / run
        shutil.rmtree(place, ignore_errors=True)  # of a benchmark that was cut short
        began = time.monotonic()
        environment = self.service.agent_environment(SEND_INTERVAL_S)
        faults = [word for fault in case.faults(self.lengths.fault) for word in ("--fault", fault)]

        def start() -> Job:
            return self._start(place, seed, run, tuple(faults), environment)

        _Person(self, start, run, case, record).follow()
        record.steps, record.updates = _steps(place), _updates(place)
        record.texts += [_message_text(record, *one) for one in self.inbox.of(run)]
        record.seconds = time.monotonic() - began
        record.save(record_file(self.directory, case.name, seed, delay))
        shutil.rmtree(place / "out", ignore_errors=True)
        return record

    def _start(
        self, place: Path, seed: int, run: str, options: tuple[str, ...], extra: dict[str, str]
    ) -> Job:
        sizes = f"--batch {self.lengths.batch} --steps {self.lengths.steps} --seed {seed}"
        words = [*SIZE, *sizes.split(), "--run", run, "--quiet", *options]
        if extra.get("SPIKEGUARD_SERVER"):
            words += ["--step-time", str(self.lengths.step_time_s)]
        return Job.start(self.children, place, {**THREADS, **extra}, *words, module=JOB)


def _run_name(case: str, seed: int, delay: int) -> str:
    return f"{case}-s{seed}-d{delay}"


def record_file(directory: Path, case: str, seed: int, delay: int) -> Path:
    """Where a row's record lies."""
    return directory / f"{_run_name(case, seed, delay)}.json"


def twin_of(directory: Path, seed: int) -> list[dict[str, float]]:
    """The steps of a twin that was trained already."""
    return _steps(directory / f"twin-{seed}")


def _configure(service: Service, place: Path, inbox: Inbox) -> None:
    """As an admin would on the first day: a price for the policy, and a channel."""
    command = [sys.executable, "-m", "spikeguard_cli.main", "token", "create", "--role", "admin"]
    command += ["--person", "Ada", "--directory", str(place / "server")]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    admin = Api(Credentials(service.place.server, made.stdout.strip()))
    admin.put("/v1/policy", {"project": "default", "policy": {"price_per_hour": PRICE_PER_HOUR}})
    target = {"url": inbox.url, "secret": "s" * 40}
    admin.put("/v1/channels/default/truth", {"kind": "webhook", "target": target, "cooldown_s": 0})


class _Person:
    """Reads what is shown while the run trains on, and decides late."""

    def __init__(
        self, site: Site, start: Callable[[], Job], run: str, case: Case, record: Record
    ) -> None:
        self.site, self.run, self.case, self.record = site, run, case, record
        self._start, self.job = start, start()
        self._seen: set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._read_last: dict[str, Any] = {}  # the proposal as it was read

    def follow(self) -> None:
        """Until the job has ended and its incidents are written up."""
        until = time.monotonic() + LIMIT_S
        ended: float | None = None
        while time.monotonic() < until:
            incidents = self._look()
            if self.job.process.poll() is not None:
                ended = ended or time.monotonic()
                written = all(i["has_postmortem"] for i in incidents)
                late = time.monotonic() - ended > REPORT_LIMIT_S
                if (written and time.monotonic() - ended > 1.5) or late:
                    break
            time.sleep(LOOK_EVERY_S)
        else:
            self.job.process.kill()
        self._conclude()

    def _look(self) -> list[dict[str, Any]]:
        incidents = self.site.service.incidents(self.run)
        for incident in incidents:
            self._read(incident)
            if proposal := awaiting(incident):
                self._decide(incident, proposal)
        return incidents

    @property
    def _step(self) -> int:
        row = last_row(self.job.log)
        return int(row["step"]) if row else 0

    def _read(self, incident: dict[str, Any]) -> None:
        self._keep(incident, "incident", incident["reason"])
        for revision in incident["revisions"]:
            self._keep(incident, "revision", revision["reason"])
        for cause in incident["causes"]:
            for reason in cause["reasons"]:
                self._keep(incident, "cause", reason)
        for command in incident["commands"]:
            self._keep(incident, "proposal", command["reason"])
            for name in ("result", "judgement", "decision_reason"):
                if command[name]:
                    self._keep(incident, "command", command[name])

    def _decide(self, incident: dict[str, Any], proposal: dict[str, Any]) -> None:
        step = self._step
        decision = self._decisions.get(proposal["id"])
        if decision is None:
            decision = Decision(
                proposal["id"], proposal["verb"], proposal["arguments"], proposal["reason"],
                proposal["cost"], step,
            )  # fmt: skip
            self._decisions[proposal["id"]] = decision
            self.record.decisions.append(decision)
            self._keep(incident, "page", self._page(incident, proposal))
            self._keep(incident, "terminal", proposal_words(proposal))
            self._at_a_glance(incident)
        if (cost := proposal["cost"])["steps"] and cost["seconds"] is not None:
            decision.pace_s.append(cost["seconds"] / cost["steps"])
        if self._kill_now(decision, step):
            return
        late = step < decision.proposed_step + self.record.delay
        if late or decision.decided_step is not None or not self.case.answered:
            return
        if decision.read_step is None:
            decision.read_step, self._read_last = step, proposal
            self._keep(incident, "page", self._page(incident, proposal))
        elif step >= decision.read_step + READING_STEPS:
            self._press(decision, self._read_last, proposal["cost"], step)

    def _press(
        self, decision: Decision, read: dict[str, Any], cost: dict[str, Any], step: int
    ) -> None:
        decision.verb, decision.arguments = read["verb"], read["arguments"]
        decision.reason, decision.cost = read["reason"], cost
        try:
            self.site.service.approve(read)
            decision.decided_step = step
            decision.decided_trained = _count_rows(self.job.log)
        except Refused as refusal:  # it changed between reading and deciding: read it again
            decision.read_step = None
            decision.refusals.append(str(refusal))

    def _kill_now(self, decision: Decision, step: int) -> bool:
        """Kill the job while the proposal waits, where the case says so, and start it again."""
        after = self.case.killed_after
        if after is None or self.record.restarts or step < decision.proposed_step + after:
            return after is not None and not self.record.restarts
        self.job.process.kill()
        self.job.process.wait()
        self.record.restarts.append(_cut(self.job.directory))
        self.job = self._start()
        return True

    def _page(self, incident: dict[str, Any], proposal: dict[str, Any]) -> str:
        number, command = incident["number"], proposal["number"]
        path = f"/confirm/default/{self.run}/{number}/{command}"
        return text_of(page(self.site.service, path))

    def _at_a_glance(self, incident: dict[str, Any], *, after: bool = False) -> None:
        path = incident_page_path(IncidentId.parse(incident["id"]))
        self._keep(incident, "view", text_of(page(self.site.service, path)), after=after)
        self._keep(incident, "show", "\n".join(incident_card(incident)), after=after)

    def _conclude(self) -> None:
        service = self.site.service
        self.record.incidents = service.incidents(self.run)
        for incident in self.record.incidents:
            self._read(incident)
            self._at_a_glance(incident, after=True)
            if incident["has_postmortem"]:
                document = service.postmortem(incident, "md").decode()
                self._keep(incident, "post-mortem", document, after=True)

    def _keep(
        self, incident: dict[str, Any], where: str, words: str, *, after: bool = False
    ) -> None:
        if (key := f"{where}\n{words}") in self._seen:
            return
        self._seen.add(key)
        at = -1 if after else self._step
        read = Text(where, at, words, _count_rows(self.job.log), incident=incident["id"])
        self.record.texts.append(read)


def _message_text(record: Record, clock: float, message: dict[str, Any]) -> Text:
    about = message["incident"] or {}
    step = about.get("newest_step") or 0
    trained = sum(at <= clock for at, _ in record.updates)
    words = f"{message['title']}\n{message['text']}"
    return Text("message", int(step), words, trained, list(message["topics"]), about.get("id", ""))


def text_of(html: str) -> str:
    """What a browser shows of a page, roughly: one line a block."""
    without = re.sub(r"(?s)<(style|script).*?</\1>", "", html)
    lines = re.sub(r"<(?:/?(?:p|div|h\d|dl|dt|section|form|li)|br)[^>]*>", "\n", without)
    plain = unescape(re.sub(r"<[^>]+>", " ", lines))
    return "\n".join(filter(None, (" ".join(line.split()) for line in plain.splitlines())))


def _steps(place: Path) -> list[dict[str, float]]:
    """Every trained step in order; step numbers repeat after a rollback."""
    with (place / "training.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in DictReader(file)]


def _updates(place: Path) -> list[tuple[float, int]]:
    rows = (line.split(",") for line in (place / UPDATES).read_text().splitlines())
    return [(float(at), int(changed)) for at, changed in rows]


def _cut(place: Path) -> int:
    """Leave both records of a killed job with as many whole rows, and say how many."""
    files = (place / "training.csv", place / UPDATES)
    lines = [file.read_text().splitlines(keepends=True) for file in files]
    whole = [[line for line in one if line.endswith("\n")] for one in lines]
    rows = min(len(whole[0]) - 1, len(whole[1]))
    files[0].write_text("".join(whole[0][: rows + 1]))
    files[1].write_text("".join(whole[1][:rows]))
    return rows


def _count_rows(log: Path) -> int:
    try:
        return max(0, log.read_bytes().count(b"\n") - 1)
    except OSError:
        return 0
