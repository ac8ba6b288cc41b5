"""What optional signals cost a step: `python -m benchmarks.optional_signals [--quick] [--json]`.

One loop with everything on at every step; each call that belongs to a signal is timed where it
runs, behind a real training step, in CPU time of its own thread, so neighbours on the machine are
not in it. Beside them, from the same loop, what `clip_grad_norm_` takes and the whole step. The
flight recorder's cost is that of norms one by one over one norm of all, taken of the same
gradients turn about, and of keeping them. On CUDA the host's part is seen only.
Law: nothing is scaled up; a signal measured in one step of ten costs what stands there in that one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.agent_overhead_loops import REFERENCE, SMALL, Loop, Size, guarded
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard.measure.collector import Collector
from spikeguard.measure.flight_recorder import FlightRecorder
from spikeguard.measure.norms import combine, each_norm, global_norm
from spikeguard.measure.signals.activations import Activations
from spikeguard.measure.signals.attention import AttentionLogits
from spikeguard.measure.signals.sequences import WorstSequence
from spikeguard.measure.signals.tokens import TokenStatistics

TOKENS = "token statistics"
SEQUENCES = "worst sequence"
UNCHANGED = "unchanged parameters"
ACTIVATIONS = "activations of every block"
LOGITS = "attention logits of every layer, from queries and keys"
RECORDER = "flight recorder: norms one by one, kept"
PARTS: tuple[tuple[str, type, str], ...] = (
    (TOKENS, TokenStatistics, "show"),
    (TOKENS, TokenStatistics, "take"),
    (SEQUENCES, WorstSequence, "show"),
    (SEQUENCES, WorstSequence, "take"),
    (UNCHANGED, Collector, "_count_unchanged"),
    (ACTIVATIONS, Activations, "_saw"),
    (ACTIVATIONS, Activations, "take"),
    (LOGITS, AttentionLogits, "see_of"),
    (LOGITS, AttentionLogits, "take"),
    (RECORDER, FlightRecorder, "pass_on"),
)
FROM_BEFORE_THE_STEP = 1  # steps left out: first uses of kernels and buffers


class Clock:
    """Seconds of the loop's thread by signal, of the step that runs."""

    def __init__(self) -> None:
        self.step: dict[str, float] = defaultdict(float)

    def timing(self, signal: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with what it takes noted under `signal`."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.step[signal] += time.thread_time() - began

        return timed

    def taken(self) -> dict[str, float]:
        """Milliseconds; then start anew."""
        taken, self.step = self.step, defaultdict(float)
        return {signal: 1e3 * seconds for signal, seconds in taken.items()}


def measure(size: Size, device: str, steps: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of each step by what took them."""
    clock = Clock()
    for signal, owner, name in PARTS:
        setattr(owner, name, clock.timing(signal, getattr(owner, name)))
    loop = guarded(
        size,
        device,
        folder,
        slow_signals_every=1,
        sampled_signals_every=1,
        activation_layers=("blocks.*",),
        unchanged_parameters=True,
        flight_recorder=64,
    )
    rows = [one_step(loop, size, clock) for _ in range(steps + FROM_BEFORE_THE_STEP)]
    guard = loop.guard
    assert guard is not None
    loop.end()
    kept = rows[FROM_BEFORE_THE_STEP:]
    whole = Spread.of([row["step"] for row in kept])
    assert whole is not None
    named = list(dict.fromkeys([*(signal for signal, _, _ in PARTS), "clip_grad_norm_", "step"]))
    spreads = {name: Spread.of([row[name] for row in kept]) for name in named}
    return {
        "parameters": sum(p.numel() for p in loop.parameters),
        "tokens_per_step": size.length * size.sequences,
        "steps": steps,
        "faults": guard.faults,
        "ms": {name: str(spread) for name, spread in spreads.items()},
        "percent_of_step": {
            name: 100.0 * spread.median / whole.median for name, spread in spreads.items() if spread
        },
    }


def one_step(loop: Loop, size: Size, clock: Clock) -> dict[str, float]:
    """A whole training step; every signal is shown what a job would show."""
    guard = loop.guard
    assert guard is not None
    device = loop.tokens.device
    queries, keys = torch.randn(
        2, size.sequences, size.heads, size.length, size.width // size.heads
    )
    losses = torch.rand(size.sequences, size.length)
    queries, keys, losses = (t.to(device) for t in (queries, keys, losses))
    began = time.thread_time()
    guard.tokens(loop.tokens)
    guard.sequence_losses(losses)
    loss = guard.loss(loop.model(loop.tokens))
    for _ in range(size.layers):
        guard.attention_logit_of(queries, keys)
    loss.backward()
    held = [p.grad for p in loop.parameters if p.grad is not None]
    extra_began = time.thread_time()
    one_by_one, together = time_norms(held)
    extra = time.thread_time() - extra_began
    clock.step[RECORDER] += one_by_one - together
    clip_began = time.thread_time()
    guard.clip_grad_norm_(1.0)
    clock.step["clip_grad_norm_"] += time.thread_time() - clip_began - (one_by_one - together)
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    guard.step()
    clock.step["step"] += time.thread_time() - began - extra
    return clock.taken()


def time_norms(gradients: list[torch.Tensor]) -> tuple[float, float]:
    """Seconds for every norm by itself and put together, and for one norm of all."""

    def seconds(norm: Callable[[], object]) -> float:
        norm()  # the next finds what this one left in the caches, for both alike
        began = time.thread_time()
        norm()
        return time.thread_time() - began

    return seconds(lambda: combine(each_norm(gradients))), seconds(lambda: global_norm(gradients))


def table(found: dict[str, Any]) -> str:
    """The same in Markdown."""
    lines = [
        f"{found['device']}, {found['machine']}, torch {found['torch']}, one thread",
        f"{found['parameters']:,} parameters, {found['tokens_per_step']:,} tokens a step, "
        f"{found['steps']} steps, faults {found['faults']}, all of it took {found['took_s']:.0f} s",
        "",
        "| what | CPU ms a step in which it is measured | % of the step |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {ms} | {found['percent_of_step'][name]:.3f} |"
        for name, ms in found["ms"].items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true", help="a small model")
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--steps", type=int, help="of the loop")
    chosen = asked.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        size, steps = (SMALL, 40) if chosen.quick else (REFERENCE, 12)
        found: dict[str, Any] = {"machine": machine(), "device": device, "torch": torch.__version__}
        found |= measure(size, device, chosen.steps or steps, Path(home))
    found["took_s"] = time.monotonic() - began
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if chosen.json else table(found))


if __name__ == "__main__":
    main()
