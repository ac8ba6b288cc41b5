"""A believable world: a run that waits for a decision, one that recovered, one gone silent.

The loss is drawn from a power law with noise. Everything else is derived from it.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from spikeguard_client.shapes import (
    Attempt,
    AuditEntry,
    Command,
    IncidentDetail,
    Note,
    Response,
    RunDetail,
)
from tests.dashboard.stand_in import World

ONSET, PEAK, DETECTED = 1246, 1266, 1247
BACK_TO = 1200
ATTEMPT = "9f2c51d07ab34e86"
Plain = dict[str, Any]
STABILITY: Plain = {
    "steps": 1400, "score": 0.47, "spiking": 3 / 1400, "clipped": 0.031, "skipped": None,
    "non_finite": 0.0, "spike_score": 5 / 1400, "loss_spike_percent": 0.181,
    "norm_spike_percent": 0.25,
    "advice": "0.21% of the newest 1,400 steps have a loss that spikes, the target is 0.10%: lower "
    "the peak rate, warm up longer, set beta2 to 0.95, or clip by a rule that follows the norm "
    "(ZClip, AdaGC).",
}  # fmt: skip
GROWTH: Plain = {
    "signal": "attention_logit_max", "first_step": 10, "last_step": 1400, "before": 22.1,
    "now": 61.4, "limit": 100.0, "reached_at": 2765,
    "sentence": "attention_logit_max rises steadily: from 22.1 at step 10 to 61.4 at step 1,400. "
    "At this rate it reaches 100 at step 2,765. What helps: QK-norm, a softcap of the logits, or a "
    "lower rate.",
}  # fmt: skip


def neutral(shape: type) -> Plain:
    """An answer of that shape in which nothing was measured or done."""
    plain: Plain = {}
    for name, hint in get_type_hints(shape).items():
        kind = get_origin(hint) or hint
        plain[name] = None if kind is Any or type(None) in get_args(hint) else kind()
    return plain


@cache
def losses() -> list[float]:
    """1,400 losses with a spike at `ONSET`."""
    noise = random.Random(7)
    return [
        2.6 + 9 * (step + 12) ** -0.42 + noise.gauss(0, 0.03) + _bump(step)
        for step in range(1, 1401)
    ]


def _bump(step: int) -> float:
    if step < ONSET:
        return 0.0
    rise = min(1.0, (step - ONSET + 1) / (PEAK - ONSET))
    return 1.5 * rise * math.exp(-max(0, step - PEAK) / 60)


def grad_norm(step: int, loss: float, noise: random.Random) -> float | str:
    """A gradient norm that leads the loss by a step, and overflows once at the peak."""
    if step == PEAK:
        return "inf"
    if step in (PEAK + 1, PEAK + 2):
        return "nan"
    calm = 0.3 + 1.2 / math.sqrt(step) + abs(noise.gauss(0, 0.03))
    return round(calm * math.exp(6 * _bump(step + 1) / 1.5 * 0.6) + 0 * loss, 4)


def segment(number: int, first: int, values: list[float], *, current: bool, skipped: int) -> Plain:
    """One segment of a Series from its first step and its losses."""
    noise = random.Random(number)
    steps = list(range(first, first + len(values)))
    norms = [
        grad_norm(s, v, noise)
        if current is False or number == 0
        else round(0.34 + abs(noise.gauss(0, 0.02)), 4)
        for s, v in zip(steps, values, strict=True)
    ]
    updates = [
        round(21.0 + noise.gauss(0, 0.4) + 60 * _bump(step + 2), 3)
        if step % 10 == 0 or abs(step - ONSET) < 60
        else None
        for step in steps
    ]
    return {
        "attempt": ATTEMPT,
        "number": number,
        "current": current,
        "steps": steps,
        "values": {
            "loss": [round(value, 4) for value in values],
            "grad_norm": norms,
            "update_norm": updates,
            "lr": [round(3e-4 * min(1, step / 200), 8) for step in steps],
        },
        "batches": [[step - 1 + skipped, step + skipped] for step in steps],
    }


def ability(name: str, answer: str, **said: str) -> Plain:
    """A row of what can be done in a job."""
    return {"name": name, "answer": answer, "reason": "", "remedy": "", "cost": "", **said}


def series(segments: list[Plain], *, trend: bool = True) -> Plain:
    """A Series of the API."""
    level = sum(losses()[ONSET - 60 : ONSET - 1]) / 59
    shape = {
        "step": ONSET - 1, "level": round(level, 4), "slope": -0.0002, "scale": 0.035, "band": 3.0,
    }  # fmt: skip
    return {
        "signals": ["loss", "grad_norm", "update_norm", "lr"],
        "segments": segments,
        "truncated": False,
        "trend": shape if trend else None,
    }


def command(**changes: Any) -> Plain:
    """The proposal of the open incident."""
    return {
        **neutral(Command),
        "id": "llama-8b-c4#2.1",
        "number": 1,
        "incident": "llama-8b-c4#2",
        "verb": "rollback",
        "arguments": {
            "target": "step-1200",
            "step": BACK_TO,
            "skip": [1240, 1290],
            "lr_factor": None,
            "lr_steps": None,
        },
        "state": "proposed",
        "revision": 2,
        "reason": "the loss settled 0.31 above its trend; step-1200 is the newest healthy one",
        "policy_version": 1,
        "policy_scope": "project",
        "checks": ["Is this data there on purpose (a new source)? Then reject."],
        "cost": {
            "steps": 200,
            "seconds": 1312.0,
            "tokens": 838860800,
            "money": 48.2,
            "currency": "EUR",
            "step_time_s": 1.5,
            "step_time_of": 200,
            "waiting_steps": 40,
            "waiting_money": 1.63,
        },
        "attempt": ATTEMPT,
        "expires_in_s": 3180.0,
        "expires_at_step": 2200,
        "proposed_at": "2026-03-14T03:07:12.450Z",
        "revisions": [
            {
                "number": 1,
                "at": "2026-03-14T03:03:12.450Z",
                "verb": "watch",
                "arguments": {"steps": 200},
                "reason": "the loss is falling back by itself",
            },
        ],
        **changes,
    }


def responses() -> list[Plain]:
    """What people did about the open incident."""
    nothing = neutral(Response)
    return [
        {**nothing, "number": 1, "at": "2026-03-14T03:08:00.000Z", "person": "Ada Lovelace",
         "action": "acknowledged"},
        {**nothing, "number": 2, "at": "2026-03-14T03:09:00.000Z", "person": "Ada Lovelace",
         "action": "assigned", "assignee": "Grace Hopper"},
        {**nothing, "number": 3, "at": "2026-03-14T03:10:00.000Z", "person": "Grace Hopper",
         "action": "commented", "text": "shard 14 was tokenised twice"},
    ]  # fmt: skip


def incident(**changes: Any) -> Plain:
    """The open incident."""
    proposal = command()
    detail = {
        **neutral(IncidentDetail),
        "id": "llama-8b-c4#2",
        "run": "llama-8b-c4",
        "project": "default",
        "number": 2,
        "state": "open",
        "kind": "lingering",
        "confidence": 0.86,
        "reason": "the loss is 0.31 above trend and no longer falling",
        "onset_step": ONSET,
        "detected_step": DETECTED,
        "peak_step": PEAK,
        "onset_batches": [ONSET - 1, ONSET + 4],
        "segment": {"attempt": ATTEMPT, "number": 0},
        "signal": "update_norm",
        "first_signal": {"signal": "update_norm", "step": ONSET - 2},
        "symptom": "spike",
        "title": "lingering spike",
        "summary": "The loss rose from 3.766 to 5.186",
        "loss_rose": True,
        "pre_loss": 3.7664,
        "peak_loss": 5.1857,
        "excess": 0.31,
        "height": "0.31 above trend",
        "newest_step": 1400,
        "acknowledged_at": "2026-03-14T03:08:00.000Z",
        "acknowledged_by": "Ada Lovelace",
        "assignee": "Grace Hopper",
        "opened_at": "2026-03-14T03:02:09.000Z",
        "trend": series([])["trend"],
        "proposal": proposal,
        "revisions": [
            {
                "number": 1,
                "step": DETECTED,
                "at": "2026-03-14T03:02:09.000Z",
                "kind": "recoverable",
                "confidence": 0.55,
                "reason": "the loss is 8.1 deviations above trend; too early to tell",
            },
            {
                "number": 2,
                "step": 1300,
                "at": "2026-03-14T03:04:41.000Z",
                "kind": "recoverable",
                "confidence": 0.64,
                "reason": "the loss is 0.52 above trend and falling 0.004 a step: back in 130",
            },
            {
                "number": 3,
                "step": 1390,
                "at": "2026-03-14T03:07:12.000Z",
                "kind": "lingering",
                "confidence": 0.86,
                "reason": "the loss is 0.31 above trend and no longer falling",
            },
        ],
        "evidence": {
            "first_moves": {"update_norm": ONSET - 2, "grad_norm": ONSET - 1, "loss": ONSET},
            "worst_z": {"update_norm": 44.1, "grad_norm": "inf", "loss": 40.6},
            "peaks": {"update_norm": 81.3, "grad_norm": "inf", "loss": 5.1857},
            "precursors": [
                {"step": ONSET - 2, "signal": "update_norm", "value": 31.0, "z": 9.2},
            ],
        },
        "causes": [
            {
                "cause": "bad_batch",
                "confidence": 0.87,
                "reasons": [f"the loss rose by 40.6 scales within step {ONSET}"],
                "against": ["its tokens have a usual entropy, 3.2 nats"],
            },
            {
                "cause": "layer_fault",
                "confidence": 0.09,
                "reasons": ["grad norm of blocks.7.attention.qkv.weight was 31.5 times its usual"],
                "against": [],
            },
        ],
        "remedy": {
            "diagnosis": "bad_batch",
            "known": True,
            "title": "bad data",
            "sentence": "Likely cause (87%): bad data: the loss rose by 40.6 scales.",
            "follow_ups": ["Look at the data of batch 1,203."],
            "evidence": ["batch", "signals", "layers"],
            "same_source": "",
        },
        "first_layer": {
            "signal": "grad_norm",
            "layer": "blocks.7.attention.qkv.weight",
            "step": ONSET - 1,
            "ratio": 31.5,
            "moved": 1,
            "known": 148,
        },
        "commands": [proposal],
        "assigned_at": "2026-03-14T03:09:00.000Z",
        "assigned_by": "Ada Lovelace",
        "responses": responses(),
        "base_rates": "80% heal, 15% linger and 5% diverge",
    }
    return {**detail, **changes}


def ordered() -> Plain:
    """A checkpoint that somebody ordered of the run itself."""
    return {
        **neutral(Command), "policy_version": 1, "policy_scope": "project",
        "id": "llama-8b-c4#0.1", "number": 1, "verb": "checkpoint_now",
        "arguments": {}, "state": "judged", "revision": 1, "reason": "the file system goes down",
        "proposed_by": "Ada Lovelace", "attempt": ATTEMPT, "expires_at_step": 2200,
        "proposed_at": "2026-03-14T02:40:00.000Z",
        "decided_at": "2026-03-14T02:40:00.000Z", "decided_by": "Ada Lovelace",
        "decision_reason": "approved revision 1 as shown",
        "delivered_at": "2026-03-14T02:40:01.000Z", "finished_at": "2026-03-14T02:40:03.000Z",
        "applied_step": 1180, "result": "step-1180",
        "judgement": "nothing to judge: saving a checkpoint changes nothing of the training",
    }  # fmt: skip


def recovered() -> Plain:
    """An incident that was rolled back and is closed."""
    done = command(
        id="llama-8b-old#1.1",
        incident="llama-8b-old#1",
        state="judged",
        decided_by="Grace Hopper",
        decided_at="2026-03-12T22:41:00.000Z",
        delivered_at="2026-03-12T22:41:01.000Z",
        finished_at="2026-03-12T22:41:09.000Z",
        applied_step=1345,
        result="rolled back to step-1200, 50 batches skipped",
        judgement="the loss is back on trend 100 steps later",
        revision=1,
        revisions=[],
        expires_in_s=None,
    )
    return incident(
        id="llama-8b-old#1",
        run="llama-8b-old",
        number=1,
        state="closed",
        settled=True,
        closed_step=1500,
        closed_at="2026-03-12T22:58:00.000Z",
        outcome="recovered",
        excess=0.004,
        opened_at="2026-03-12T22:30:00.000Z",
        proposal=None,
        commands=[done],
        has_postmortem=True,
        newest_step=1500,
    )


def run(**changes: Any) -> Plain:
    """A run in the list, with its details."""
    return {
        **neutral(RunDetail),
        "project": "default",
        "name": "llama-8b-c4",
        "id": "llama-8b-c4",
        "state": "live",
        "created_at": "2026-03-13T18:00:02.000Z",
        "last_message_at": "2026-03-14T03:07:12.450Z",
        "age_s": 1.4,
        "last_step": 1400,
        "last_loss": 3.98,
        "last_grad_norm": 0.41,
        "tokens_per_second": 184000.0,
        "open_incident": 2,
        "incidents": 2,
        "waiting_approval": True,
        "live_attempts": 1,
        "open_kind": "lingering",
        "tags": ["c4"],
        "stability": STABILITY,
        "trends": [GROWTH],
        "attempts": [
            {
                **neutral(Attempt),
                "id": ATTEMPT,
                "number": 1,
                "started_at": "2026-03-13T18:00:02.000Z",
                "last_message_at": "2026-03-14T03:07:12.450Z",
                "world_size": 8,
                "agent_version": "0.1.0",
                "tokens_per_step": 524288,
                "capabilities": ["rollback"],
                "abilities": [
                    ability("clip", "yes"),
                    ability(
                        "skip_update",
                        "no",
                        reason="AdamW takes no found_inf",
                        remedy="Adam, AdamW and SGD do with fused=True",
                    ),
                    ability("rollback", "yes", cost="the steps since then are trained again"),
                    ability("rewind_from_memory", "not known yet"),
                ],
                "links": {"Weights & Biases": "https://wandb.ai/acme/llama/runs/8f3k2x1q"},
            },
        ],
        "segments": [branch(0, 1, 1400)],
        "targets": [
            target("step-1200", 1200, "healthy", protected=True),
            target("step-1250", 1250, "suspect", protected=False),
        ],
        "precursors": [
            warning(903, "update_norm", 31.4, 9.2),
            warning(419, "unchanged_parameters", 0.97, "inf"),
        ],
        "notes": [
            note(
                2,
                1000,
                "learning_rate 0.0003 → 0.0002",
                began=2,
                effect=-0.0121,
                effect_error=0.0048,
                judged_step=1200,
                outcome="the loss lies 0.0121 ± 0.0048 nats below its earlier trend",
            ),
            note(
                1,
                600,
                "new data mix, 30 % code",
                reason="the evaluation of week 10",
                expect="lower",
                expect_size=0.02,
                unknown="the loss was not finite",
                outcome="not known: the loss was not finite",
            ),
        ],
        **changes,
    }


def warning(step: int, signal: str, value: float, z: float | str) -> Plain:
    """A precursor that no incident followed."""
    moment = f"2026-03-13T{20 + step // 400}:14:05.000Z"
    where = {"attempt": 1, "segment": 0, "step": step, "at": moment}
    return {**where, "signal": signal, "value": value, "z": z}


def note(number: int, step: int, text: str, **changes: Any) -> Plain:
    """A change that nobody ordered here."""
    person = changes.get("began") is None
    return {
        **neutral(Note),
        "number": number,
        "source": "person" if person else "attempt",
        "at": "2026-03-13T21:14:05.000Z",
        "author": "Ada Lovelace" if person else "server",
        "attempt": ATTEMPT,
        "segment": 0,
        "step": step,
        "text": text,
        **changes,
    }


def branch(
    number: int, first: int, last: int, *, current: bool = True, back: int | None = None
) -> Plain:
    """A segment of a run; `back` is the step of segment 0 that it continues."""
    parent = None if back is None else {"attempt": ATTEMPT, "segment": 0, "step": back}
    return {
        "attempt": ATTEMPT,
        "number": number,
        "reason": "start" if back is None else "rollback",
        "parent": parent,
        "first_step": first,
        "last_step": last,
        "position": first - 1,
        "current": current,
    }


def target(name: str, step: int, health: str, *, protected: bool) -> Plain:
    """A checkpoint."""
    return {
        "name": name,
        "attempt": ATTEMPT,
        "segment": 0,
        "step": step,
        "position": step,
        "medium": "disk",
        "health": health,
        "damage": None,
        "protected": protected,
    }


def world() -> World:
    """Everything at once."""
    read = losses()
    spiked = segment(0, 1, read, current=True, skipped=0)
    calm = read[1320:1400] * 4
    again = segment(1, BACK_TO + 1, calm[:300], current=True, skipped=50)
    undone = {
        **spiked,
        "steps": spiked["steps"][:1345],
        "values": {k: v[:1345] for k, v in spiked["values"].items()},
        "batches": spiked["batches"][:1345],
    }
    around = slice(ONSET - 200, 1400)
    copied = {
        **spiked,
        "steps": spiked["steps"][around],
        "values": {k: v[around] for k, v in spiked["values"].items()},
        "batches": spiked["batches"][around],
    }
    old = run(
        name="llama-8b-old",
        id="llama-8b-old",
        state="ended",
        age_s=104400.0,
        last_step=1500,
        last_loss=3.52,
        open_incident=None,
        open_kind=None,
        incidents=1,
        waiting_approval=False,
        live_attempts=0,
        segments=[branch(0, 1, 1345), branch(1, BACK_TO + 1, 1500, back=BACK_TO)],
    )
    silent = run(
        project="vision",
        name="vit-g",
        id="vision/vit-g",
        state="silent",
        look_at_job="Look at the job: attempt 1 sent nothing any more and never said why.",
        age_s=912.0,
        last_step=88210,
        last_loss="nan",
        last_grad_norm="inf",
        open_incident=None,
        open_kind=None,
        incidents=0,
        waiting_approval=False,
        live_attempts=2,
        tokens_per_second=None,
        stability=None,
        trends=[],
    )
    return World(
        commands=[ordered()],
        runs=[run(), silent, old],
        series={
            "default/llama-8b-c4": series([spiked]),
            "default/llama-8b-old": series([undone, again]),
            "vision/vit-g": series([]),
        },
        incidents=[incident(), recovered()],
        incident_series={
            "llama-8b-c4#2": series([copied]),
            "llama-8b-old#1": series([undone, again]),
        },
        audit=[
            {
                **neutral(AuditEntry),
                "number": 2,
                "at": "2026-03-14T03:07:12.450Z",
                "actor": "policy",
                "action": "command.proposed",
                "subject": "llama-8b-c4#2.1",
                "after": "proposed",
                "reason": "the loss settled above its trend",
                "actor_kind": "policy",
            },
            {
                **neutral(AuditEntry),
                "number": 1,
                "at": "2026-03-14T02:07:12.450Z",
                "actor": "Grace Hopper",
                "action": "policy.written",
                "subject": "policy of default/llama-8b-c4",
                "before": "policy 1",
                "after": "policy 1 of the run",
                "reason": "this one is rented",
                "changes": [{"field": "price_per_hour", "before": None, "after": 98.0}],
                "actor_kind": "person",
                "token": 3,
                "known_by": "token",
            },
        ],
    )
