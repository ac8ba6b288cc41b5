"""Works out how stable runs are and what grows in them, when nobody waits for it.

From stored samples alone, so that a restart or a rollback needs nothing of its own; two replicas
that do it at once write the same.
"""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any, Final

import numpy as np
import sqlalchemy as sql

from spikeguard_core.policy.settings import Policy
from spikeguard_core.stability import score, trends
from spikeguard_server.retries import survive_each
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.stability import (
    STEPS,
    newest_columns,
    runs_moved_on,
    write_stability,
)

AT_ONCE: Final = 20  # runs of one look
WINDOW: Final = 10_000  # steps that are judged; OLMo-core's
NAMES: Final = (*score.SIGNALS, *trends.SIGNALS)


def look_at_stability(engine: sql.Engine, stopping: Event | None = None) -> None:
    """Look at the runs that trained on, or at those before `stopping`."""
    with engine.connect() as connection:
        moved = runs_moved_on(connection, AT_ONCE)
    survive_each(moved, partial(_look, engine), lambda row: f"stability of {row.run_id}", stopping)


def _look(engine: sql.Engine, row: sql.Row[Any]) -> None:
    with engine.connect() as connection:
        seen = newest_columns(connection, row.run_id, NAMES, WINDOW + score.PAPER_ROWS)
        policy = policy_of(connection, row.project, row.run_id)
    with_loss = _where(seen, ~np.isnan(seen.get(score.LOSS, np.full_like(seen[STEPS], np.nan))))
    stability = score.stability_of(with_loss, WINDOW) if score.LOSS in seen else None
    found = _trends(_where(seen, _kept(seen[STEPS])), policy)
    with engine.begin() as connection:
        write_stability(connection, row.run_id, row.last_step, stability, found)


def _trends(line: score.Columns, policy: Policy) -> list[trends.Trend]:
    limits = policy.param_norm_limit, policy.attention_logit_limit, policy.activation_outlier_limit
    told = [
        trends.trend_of(name, line[STEPS], line[name], limit)
        for name, limit in zip(trends.SIGNALS, limits, strict=True)
        if limit is not None and name in line
    ]
    return [each for each in told if each is not None]


def _kept(steps: score.Floats) -> score.Flags:
    """Which steps were not trained anew later."""
    following = np.minimum.accumulate(np.append(steps[1:], np.inf)[::-1])[::-1]
    return steps < following


def _where(columns: score.Columns, rows: score.Flags) -> score.Columns:
    return {name: values[rows] for name, values in columns.items()}
