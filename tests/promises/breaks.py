"""How each promise of docs/promises.md is broken by hand: a text replaced in one file.

The smallest change after which a user would no longer have what is promised, and the program still
runs. `python -m tests.promises` makes them one at a time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/promises.md"
_ROW = re.compile(r"^\| `([a-z-]+)` \| (.+) \| `(tests/[\w/]+\.py::test_\w+)` \|$", re.MULTILINE)


class Promise(NamedTuple):
    """One row of the page."""

    name: str
    said: str
    test: str  # path::name


class Break(NamedTuple):
    """`find`, which stands once in `file`, becomes `replace`."""

    file: str
    find: str
    replace: str


def promises() -> list[Promise]:
    """Those of the page, in its order."""
    return [Promise(*found) for found in _ROW.findall(PAGE.read_text())]


def broken(break_: Break, text: str) -> str:
    """`text` with the promise broken; raises ValueError where the place is not there once."""
    count = text.count(break_.find)
    if count != 1:
        raise ValueError(f"{break_.file} has {count} times, not once: {break_.find!r}")
    return text.replace(break_.find, break_.replace)


AGENT = "agent/spikeguard"
CORE = "server/spikeguard_core"
SERVER = "server/spikeguard_server"
REPLAY = "server/spikeguard_replay"

BREAKS = {
    # ---- the loop ----
    "attach-refuses": Break(f"{AGENT}/assembly.py", "    check_arguments(given, optimizers)\n", ""),
    "attach-changes-nothing": Break(
        f"{AGENT}/guard.py",
        "        self._process, self._thread = os.getpid(), get_ident()\n",
        "        self._process, self._thread = os.getpid(), get_ident()\n"
        '        __import__("torch").rand(1)\n',
    ),
    "nothing-raised": Break(
        f"{AGENT}/faults.py",
        "        self._faults.note(self._place, error)\n        return True\n",
        "        self._faults.note(self._place, error)\n        return False\n",
    ),
    "no-host-sync": Break(
        f"{AGENT}/measure/collector.py",
        "        place = step % self._cycle\n",
        "        place = step % self._cycle\n"
        "        _ = [value.item() for value in self._scalars.values()]\n",
    ),
    "skip-without-sync": Break(
        f"{AGENT}/optim/update_skipper.py",
        "        self._flag = flag\n        return flag\n",
        "        self._flag = flag\n        self._read = bool(flag.item())\n        return flag\n",
    ),
    "skip-exact": Break(
        f"{AGENT}/optim/update_skipper.py",
        "        optimizer.found_inf = flag\n",
        "        optimizer.found_inf = torch.zeros_like(flag)\n",
    ),
    "skip-on-all-ranks": Break(
        f"{AGENT}/optim/update_skipper.py",
        "flag, self.lends = non_finite(norm, loss), self.able()",
        "flag, self.lends = non_finite(norm, loss), self.able()\n"
        "        if torch.distributed.get_rank() if torch.distributed.is_initialized() else 0:\n"
        "            flag = torch.zeros_like(flag)",
    ),
    "rollback-exact": Break(
        f"{AGENT}/state/training_state.py",
        "                restore_optimizer(optimizer, tree",
        "                (optimizer, tree",
    ),
    "restart-exact": Break(
        f"{AGENT}/state/random_numbers.py",
        '    torch.set_rng_state(tree["torch"])\n',
        "",
    ),
    "skip-ahead-exact": Break(
        f"{AGENT}/state/lineage.py",
        "position = max(covering)",
        "position = max(covering) + 1",
    ),
    "data-other": Break(
        f"{AGENT}/data/fingerprints.py",
        "if seen.is_other(key, reading.peek()):",
        "if reading.peek() is None:",
    ),
    "orders-fenced": Break(
        f"{AGENT}/commands/executor.py",
        "if order.attempt != self._progress.attempt:",
        "if not order.attempt:",
    ),
    "orders-limited": Break(
        f"{AGENT}/commands/executor.py",
        "        return self._beyond_limits(order.action, verb)\n",
        "        return None\n",
    ),
    "orders-once": Break(
        f"{AGENT}/commands/executor.py",
        "            stored = self._journal.results.get(delivery.order.command)\n",
        "            stored = None\n",
    ),
    "orders-voted": Break(
        f"{AGENT}/commands/executor.py",
        "            return first_problem(self._world, reason)\n",
        "            return reason\n",
    ),
    "orders-journalled": Break(
        f"{AGENT}/commands/executor.py",
        '                    reason = f"the journal cannot be written: {error}"[:500]\n',
        "                    pass\n",
    ),
    "orders-survive-kill": Break(
        f"{AGENT}/commands/journal.py",
        "        return [self._interrupted(each) for each in begun]\n",
        "        return []\n",
    ),
    "orders-undone": Break(
        f"{AGENT}/commands/journal.py",
        "            if begun.command in self.undone:\n",
        "            if begun.command in ():\n",
    ),
    "half-done-ends": Break(
        f"{AGENT}/commands/journal.py",
        "done = command in self.kept if lowers else lasting or ",
        "done = lowers or ",
    ),
    "checkpoints-checked": Break(
        f"{AGENT}/state/checkpoints.py",
        '            raise ValueError(f"{name} is damaged: {problem}")\n',
        "            return\n",
    ),
    "foreign-files": Break(
        f"{AGENT}/state/folders.py",
        "        return (folder / MARKER).read_bytes() == _SAID\n",
        "        return folder.is_dir()\n",
    ),
    "rate-scaled": Break(
        f"{AGENT}/optim/optimizers.py",
        "            if isinstance(rate, Tensor):\n"
        '                group["lr"].copy_(rate)\n'
        "            else:\n"
        '                group["lr"] = rate\n',
        "            pass\n",
    ),
    "doctor-says-true": Break(
        f"{AGENT}/doctor/rules.py",
        "            if first >= 0.99 * most:",
        "            if first <= 0.99 * most:",
    ),
    "doctor-finds": Break(
        f"{AGENT}/doctor/rules.py", "    if group.rate <= most:\n", "    if most:\n"
    ),
    "doctor-executes-nothing": Break(
        f"{AGENT}/doctor/command.py",
        "        if not known:\n",
        "        if known is None:\n",
    ),
    "clip-by-name": Break(
        f"{AGENT}/measure/collector.py",
        "            self._scale(clipped.factor)\n",
        "            pass\n",
    ),
    "emergency-rule": Break(
        f"{AGENT}/loop/exchange.py",
        "        self._inbox.changed = True\n",
        "        self._inbox.own = ()\n",
    ),
    "mitigation-on-time": Break(
        f"{AGENT}/commands/mitigations.py",
        "if each.start <= steps < each.end}",
        "if each.start <= steps}",
    ),
    "stop-ends": Break(
        f"{AGENT}/commands/executor.py",
        "                self._feed.stopped = True\n",
        "",
    ),
    "server-not-waited-for": Break(
        f"{AGENT}/uplink/outbox.py",
        "        self._waiting.append((time.monotonic() if at is None else at, record))\n",
        "        self._waiting.append((time.monotonic() if at is None else at, record))\n"
        "        while not self.empty:\n"
        "            time.sleep(0.001)\n",
    ),
    "disk-not-waited-for": Break(
        f"{AGENT}/uplink/outbox.py",
        "        self._waiting.append((time.monotonic() if at is None else at, record))\n",
        "        self._waiting.append((time.monotonic() if at is None else at, record))\n"
        "        with self._io:\n"
        "            self._drain()\n",
    ),
    "without-server": Break(
        f"{AGENT}/uplink/sender.py",
        "        return outbox, None\n",
        "        return Outbox(None, run, attempt, settings.outbox_bytes), None\n",
    ),
    "abandoned-stays-so": Break(
        f"{AGENT}/commands/recovery.py",
        "there = [target for target in reversed(found) if not self.abandoned(target)]",
        "there = [target for target in reversed(found)]",
    ),
    "passes-exact": Break(
        f"{AGENT}/data/reading.py",
        "                restore_start(self.loader, self.generators, self.start)\n",
        "                pass\n",
    ),
    "other-world-size": Break(
        f"{AGENT}/state/checkpoints.py",
        "        if saved == world_size:\n",
        "        if saved:\n",
    ),
    "same-step": Break(
        f"{AGENT}/commands/executor.py",
        "        if order is not None:\n            self._execute",
        "        if order is not None and self._world.leads:\n            self._execute",
    ),
    "layouts-exact": Break(
        f"{AGENT}/commands/recovery.py",
        "        self.state.restore(tree)\n",
        "        if self._world.rank < 2:\n            self.state.restore(tree)\n",
    ),
    "public-loops": Break(
        f"{AGENT}/optim/update_skipper.py",
        "        self.by_sync = enabled and by_sync and all(map(can_skip_by_sync, optimizers))\n",
        "        self.by_sync = False\n",
    ),
    "norms-exact": Break(
        f"{AGENT}/measure/collector.py",
        "            self._measure(PARAM_NORM, trained, trained)\n",
        "            self._measure(PARAM_NORM, trained[1:], trained[1:])\n",
    ),
    # ---- on the way ----
    "loss-declared": Break(
        f"{AGENT}/uplink/backlog.py",
        "        lost[why] += samples\n",
        "        lost[why] += 0\n",
    ),
    "outage-caught-up": Break(
        f"{AGENT}/uplink/sender.py",
        "        turn.failures += 1\n",
        "        turn.failures += 1\n        turn.outbox.acknowledge(message.sequence)\n",
    ),
    "killed-job-sends": Break(
        f"{AGENT}/uplink/sender.py",
        "    earlier = earlier_outboxes(folder, run, tell)\n",
        "    earlier: list[Outbox] = []\n",
    ),
    "sigterm-flushes": Break(
        f"{AGENT}/loop/attempt.py",
        "            thread.join(max(0.0, began + within_s - time.monotonic()))\n",
        "            pass\n",
    ),
    # ---- the server ----
    "stored-once": Break(
        f"{SERVER}/ingest/receive.py",
        "if intake.reach > intake.attempt.last_sequence:",
        "if intake.reach:",
    ),
    "stored-whole": Break(
        f"{SERVER}/ingest/receive.py",
        "        if intake.detection.snapshots:\n",
        "    with engine.begin() as connection:\n        if intake.detection.snapshots:\n",
    ),
    "gap-refused": Break(
        f"{SERVER}/ingest/receive.py",
        "    if message.sequence > reach:\n        raise SequenceGap(last + 1, message.sequence)\n",
        "",
    ),
    "replicas-know-alike": Break(
        f"{SERVER}/ingest/detection.py",
        "        monitor, step = kept.monitor, kept.place.step\n",
        "        monitor, step = kept.monitor, row.step\n",
    ),
    "moves-legal": Break(
        f"{CORE}/lifecycle/command_life.py",
        "    (CommandState.APPLIED, CommandEvent.JUDGE): CommandState.JUDGED,\n",
        "    (CommandState.APPLIED, CommandEvent.JUDGE): CommandState.JUDGED,\n"
        "    (CommandState.REJECTED, CommandEvent.APPROVE): CommandState.APPROVED,\n",
    ),
    "approval-names-person": Break(
        f"{SERVER}/ingest/decisions.py",
        "decided_by=person,",
        'decided_by="somebody",',
    ),
    "approval-of-what-was-seen": Break(
        f"{SERVER}/ingest/decisions.py",
        "        if seen != command.action:",
        "        if revision < 0:",
    ),
    "approval-in-time": Break(
        f"{SERVER}/entities.py",
        "        if now >= self.expires_at:\n            return False\n",
        "",
    ),
    "silence-is-no": Break(
        f"{SERVER}/ingest/timeouts.py",
        "    if command.valid(intake.now, intake.run.last_step):\n        return\n",
        "    if command.attempt:\n        return\n",
    ),
    "one-decides": Break(
        f"{SERVER}/ingest/decisions.py",
        "    if not can(command.state, event):\n",
        "    if command.attempt < 0:\n",
    ),
    "kill-switch": Break(
        f"{SERVER}/ingest/decisions.py", "    if policy.halted:\n", "    if policy is None:\n"
    ),
    "roles-part": Break(
        f"{SERVER}/identity/permissions.py",
        "    if caller.role not in rule.roles:\n",
        "    if caller.role not in rule.roles and not rule.roles:\n",
    ),
    "projects-part": Break(
        f"{SERVER}/identity/permissions.py",
        "    if project not in (None, wanted):\n",
        "    if project not in (None, wanted) and not wanted:\n",
    ),
    "audit-append-only": Break(
        f"{SERVER}/store/schema.py",
        '"audit": "SELECT, INSERT"',
        '"audit": "ALL"',
    ),
    "backup-goes-on": Break(
        f"{AGENT}/uplink/sender.py",
        "        outbox.declare_lost(expected)\n",
        "        pass\n",
    ),
    # ---- detection and judgement ----
    "one-behaviour": Break(
        f"{CORE}/monitor/monitor.py",
        "            self.judged_step = sample.step\n",
        "            self.judged_step = sample.step + bool(events)\n",
    ),
    "non-finite-at-once": Break(
        f"{CORE}/monitor/opening.py",
        "if it is not None and not math.isfinite(it)]",
        "if it is not None and math.isinf(it)]",
    ),
    "settings-by-name": Break(
        f"{SERVER}/ingest/receive.py",
        "        detection.use(choice_of(opening.detection))\n",
        "        choice_of(opening.detection)\n",
    ),
    "rollback-judged": Break(
        f"{CORE}/monitor/incident_updates.py",
        "        worked = away is None and seen and episode.is_back(settings)\n",
        "        worked = away is None and seen and not episode.is_back(settings)\n",
    ),
    "cause-decides": Break(
        f"{CORE}/policy/remedies.py",
        "    Cause.LR_TOO_HIGH,\n    back=GoBack.BEFORE_CAUSE,\n",
        "    Cause.LR_TOO_HIGH,\n",
    ),
    "mitigation-proposed": Break(
        f"{CORE}/policy/rollback.py",
        "    tried = {action.apply for action in gone_back}\n",
        "    tried = set(situation.mitigations)\n",
    ),
    "checkpoint-health": Break(
        f"{CORE}/policy/targeting.py",
        "    if any(begun <= step <= over for begun, over in alarms) or",
        "    if",
    ),
    "innocent-batches": Break(
        f"{CORE}/policy/remedies.py",
        "    Cause.WEIGHT_CORRUPTION,\n    back=GoBack.BEFORE_CAUSE,\n",
        "    Cause.WEIGHT_CORRUPTION,\n    back=GoBack.BEFORE_CAUSE,\n    skip=Skip.SPAN,\n",
    ),
    "healing-is-watched": Break(
        f"{CORE}/policy/rules.py",
        "    if incident.kind is not Kind.RECOVERABLE:\n",
        "    if incident.kind is not Kind.OUTLIER_BATCH:\n",
    ),
    "waiting-has-its-price": Break(
        f"{CORE}/policy/cost.py",
        "        steps = max(0, situation.step - action.step)\n",
        "        steps = max(0, situation.incident.onset_step - action.step)\n",
    ),
    "auto-within-budget": Break(
        f"{CORE}/policy/orders.py", "spent >= rule.budget or", "spent < 0 or"
    ),
    "ends-have-names": Break(
        f"{CORE}/lifecycle/command_life.py",
        "    CommandEvent.HEAL: CommandState.WITHDRAWN_HEALED,\n",
        "    CommandEvent.HEAL: CommandState.WITHDRAWN,\n",
    ),
    "interventions-judged": Break(
        f"{CORE}/diagnosis/change_effect.py",
        "(NORMAL_95 * math.hypot(doubt, of) for",
        "(0.01 * math.hypot(doubt, of) for",
    ),
    "record-true": Break(
        f"{SERVER}/report/wording.py",
        "known, peak = incident.pre_loss, incident.peak_loss",
        "known, peak = incident.pre_loss, 1.5 * (incident.peak_loss or 0.0)",
    ),
    # ---- people ----
    "message-to-decision": Break(
        f"{SERVER}/http/pages/templates/confirm.html",
        '{% if follows %}<meta http-equiv="refresh" content="3">{% endif %}',
        "",
    ),
    "phone": Break(
        "dashboard/spikeguard_dashboard/style.css",
        ".sg-head { display: flex;",
        ".sg-head { min-width: 600px; display: flex;",
    ),
    "told-again": Break(
        f"{SERVER}/store/conversations.py",
        "    due = later if failures else",
        "    due = None if failures else",
    ),
    "nobody-answers": Break(
        f"{SERVER}/ingest/timeouts.py",
        "    for due in due_escalations(connection, intake.run_id, now):\n",
        "    for due in due_escalations(connection, intake.run_id, now)[:0]:\n",
    ),
    "silences-hold": Break(
        f"{SERVER}/notify/notifier.py",
        "    row = silence_over(connection, held.project, run, held.key.incident, now)\n"
        "    if row is None:\n",
        "    row = silence_over(connection, held.project, run, held.key.incident, now)\n"
        "    if row is None or row.number:\n",
    ),
    "who-has-it": Break(
        f"{SERVER}/ingest/responses.py",
        "    if row.acknowledged_by is not None:\n        return\n",
        "",
    ),
    "assigned": Break(
        f"{SERVER}/ingest/responses.py",
        "assignee=name)\n",
        "assignee=None)\n",
    ),
    "comments-kept": Break(
        f"{SERVER}/ingest/responses.py",
        "ResponseAction.COMMENTED, text=text.strip())",
        'ResponseAction.COMMENTED, text="")',
    ),
    "other-target": Break(
        f"{SERVER}/ingest/orders.py",
        " else _seen(connection, options, of, ordered)\n",
        " else None\n",
    ),
    "postmortem-names-people": Break(
        f"{SERVER}/report/wording.py",
        'return command.decided_by or ("" if',
        'return ("" if',
    ),
    "shown-in-a-terminal": Break(
        "agent/spikeguard_cli/wording.py",
        """        *_said("answer", f"within {duration_phrase(proposal['expires_in_s'])}"),\n""",
        "",
    ),
    # ---- operators and readers of logs ----
    "metrics-of-the-fleet": Break(
        f"{SERVER}/metrics.py",
        '("1 while a spike of the run is open.", "spikes")',
        '("1 while a spike of the run is open.", "last_step")',
    ),
    "alerts-have-series": Break(
        f"{SERVER}/metrics.py",
        '"spikeguard_run_incident_info",',
        '"spikeguard_run_open_incident_info",',
    ),
    "compose-on-loopback": Break(
        "docker-compose.yml",
        '"${SPIKEGUARD_BIND:-127.0.0.1}:${SPIKEGUARD_PORT:-8000}:8000"',
        '"${SPIKEGUARD_PORT:-8000}:8000"',
    ),
    "up-finds-all-again": Break(
        f"{SERVER}/cli/up.py",
        "        if not file.exists():\n            write_own",
        "        if file.name:\n            write_own",
    ),
    "any-log": Break(
        f"{REPLAY}/delimited.py",
        " for row in rows) if self.decimal_comma else rows\n",
        " for row in rows) if not rows else rows\n",
    ),
    "log-has-picture": Break(
        f"{REPLAY}/drawing.py",
        '    axes[-1][0].set_xlabel("step")\n    _write(figure, path)\n',
        '    axes[-1][0].set_xlabel("step")\n',
    ),
    "policy-on-a-log": Break(
        f"{REPLAY}/advice.py",
        "        if every:\n            last, newest",
        "        if not every:\n            last, newest",
    ),
}
