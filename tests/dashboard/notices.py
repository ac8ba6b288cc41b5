"""Channels, a silence and a delivery log, as the server answers them."""

from __future__ import annotations

from typing import Any

NOTICES: dict[str, list[dict[str, Any]]] = {
    "channels": [
        {
            "project": "default",
            "name": "oncall",
            "kind": "pagerduty",
            "target": {"routing_key": "…", "url": "https://events.pagerduty.com"},
            "about": ["decisions", "spikes"],
            "kinds": ["divergent", "lingering"],
            "runs": ["llama-*"],
            "level": 0,
            "cooldown_s": 120.0,
            "links": False,
            "person": None,
            "enabled": True,
            "changed_at": "2026-03-14T03:00:00.000Z",
            "changed_by": "Ada Lovelace",
            "delivered_at": "2026-03-14T03:07:14.000Z",
            "failed_at": "2026-03-14T03:09:00.000Z",
        },
    ],
    "silences": [
        {
            "project": "default",
            "number": 4,
            "run": None,
            "incident": None,
            "begins_at": "2026-03-14T03:00:00.000Z",
            "ends_at": "2026-03-14T05:00:00.000Z",
            "reason": "the racks are <moved>",
            "created_at": "2026-03-14T02:00:00.000Z",
            "created_by": "Grace Hopper",
        }
    ],
    "deliveries": [
        {
            "at": "2026-03-14T03:07:14.000Z",
            "project": "default",
            "run": "llama-8b-c4",
            "incident": 2,
            "channel": "oncall",
            "topics": ["opened", "proposed"],
            "result": "sent",
            "reason": "llama-8b-c4#2: lingering spike, decide: roll back to step-1200",
            "took_ms": 84.2,
        },
        {
            "at": "2026-03-14T02:07:14.000Z",
            "project": "default",
            "run": "llama-8b-c4",
            "incident": 1,
            "channel": "oncall",
            "topics": ["opened"],
            "result": "dropped",
            "reason": "it had ended as healed before anybody was told",
            "took_ms": None,
        },
    ],
}
