"""Updates dropped one after another: the run is stuck, while all looks calm.

Law: pure; a run is stuck from `DetectionSettings.drop_limit` dropped updates in a row on, and says
so in the kind's reason and in the largest deviation of `update_dropped`.
"""

from __future__ import annotations

from dataclasses import replace

from spikeguard_protocol import BatchRange, Kind, Signal
from spikeguard_server.domain.detection.signal_detector import Suspect
from spikeguard_server.domain.diagnosis.evidence import Traces
from spikeguard_server.domain.events import Judgement

LOSS = Signal.LOSS.value


def stuck_judgement(drops: int) -> Judgement:
    """What a run is held to be whose last `drops` updates were dropped."""
    reason = f"stuck: {drops} updates in a row had to be dropped, the weights stand still"
    return Judgement(Kind.DIVERGENT, 0.95, reason)


def first_dropped(newest: Suspect, drops: int, traces: Traces) -> Suspect:
    """The first of `drops` rows that end with `newest`, as far back as rows are kept."""
    steps = [step for step in traces.of[LOSS].steps if step <= newest.step]
    if not steps or steps[-1] != newest.step:
        return newest
    step = steps[-min(drops, len(steps))]
    return replace(newest, step=step, batches=batches_before(newest.batches, newest.step - step))


def batches_before(batches: BatchRange | None, steps: int) -> BatchRange | None:
    """What was consumed so many steps before, at the same pace."""
    if batches is None or batches.first < steps * len(batches):
        return None
    back = steps * len(batches)
    return BatchRange(batches.first - back, batches.end - back)
