"""Each step's values also into the user's own run (TensorBoard, Weights & Biases), and a note there
of what was done about a spike, and how it ended.

    guard = attach(model, optimizer, run="name", forward=Forward(SummaryWriter("runs/name")))

Law: nothing of a tracker runs in the loop's thread, raises into it or is waited for: values go
through a bounded queue (the oldest are dropped and counted) to a thread of its own. A tracker that
fails is counted too and asked again at the next step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard.optim.clipping.rules import ClipSignal
from spikeguard_protocol import Signal

Write = Callable[[dict[str, float], int], None]
WriteNote = Callable[[str, str, int], None]  # name, text, step
WAITING = 1_000  # steps between the loop and the tracker
TITLE = 63  # characters of an alert's title, W&B's limit
CLOSE_S = 3.0  # close() waits no longer for the tracker

# The trackers' usual names; any other signal is `train/` and its own.
NAMES: Mapping[str, str] = {
    Signal.LOSS: "train/loss",
    Signal.GRAD_NORM: "train/grad_norm_raw",
    Signal.LR: "train/learning_rate",
    ClipSignal.MEAN: "train/zclip_ema_mean",
    ClipSignal.STD: "train/zclip_ema_std",
}


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people who look at the tracker."""

    name: str  # one of its own for every command and every incident
    text: str
    alerts: bool = False  # people are told by the tracker's own means, where it has them


class Forward:
    """A writer that is fed from the side."""

    def __init__(self, writer: Any) -> None:
        """`writer`: a SummaryWriter, a W&B run, or `write(values, step)`; else TypeError."""
        self._write = writing(writer)
        self._write_note = noting(writer)
        self._alert: Callable[..., object] | None = getattr(writer, "alert", None)
        self._newest = 0  # step
        self._waiting: deque[tuple[int, dict[str, float] | Note]] = deque(maxlen=WAITING)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = 0  # steps that the tracker was too slow for
        self.failed = 0  # steps that it would not take
        self.error: str | None = None  # the newest one

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Called from the loop: never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spikeguard-forward")
            self._thread.daemon = True
            self._thread.start()
        self.dropped += len(self._waiting) == WAITING
        self._newest = step
        self._waiting.append((step, dict(values)))
        self._wake.set()

    def note(self, name: str, text: str, *, alerts: bool = False) -> None:
        """Called from any thread: never waits. Written once the next step's values are.

        `alerts`: also as an alert, where the tracker has those (W&B, trackio).
        """
        if self._write_note is not None or (alerts and self._alert is not None):
            self._waiting.append((self._newest, Note(name, text, alerts)))
            self._wake.set()

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_S`; the tracker itself stays open."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._hand_over(*self._waiting.popleft())
            if self._closing.is_set() and not self._waiting:
                return

    def _hand_over(self, step: int, values: dict[str, float] | Note) -> None:
        try:
            if isinstance(values, Note):
                if self._write_note is not None:
                    self._write_note(values.name, values.text, step)
                if values.alerts and self._alert is not None:
                    self._alert(title=f"spikeguard: {values.name}"[:TITLE], text=values.text)
                return
            self._write({NAMES.get(n, f"train/{n}"): value for n, value in values.items()}, step)
        except BaseException as error:  # not even SystemExit ends more than this step here
            self.failed += 1
            self.error = f"{type(error).__name__}: {error}"


def writing(writer: Any) -> Write:
    """How `writer` is told of one step's values; raise TypeError for what is none."""
    if hasattr(writer, "add_scalar"):
        return lambda values, step: _each(writer.add_scalar, values, step)
    if hasattr(writer, "active_run"):  # MLflow's belongs to the thread that started it
        raise TypeError(
            "Forward takes no mlflow module: its thread would open a run of its own. Give a "
            "function: lambda values, step: mlflow.log_metrics(values, step=step, run_id=RUN_ID)"
        )
    if hasattr(writer, "log_metrics"):
        return lambda values, step: writer.log_metrics(values, step=step)
    if hasattr(writer, "log"):
        return lambda values, step: writer.log(values, step=step)
    if callable(writer):
        write: Write = writer
        return write
    raise TypeError(
        f"Forward takes a SummaryWriter, a W&B run or a function of (values, step), not a "
        f"{type(writer).__name__}"
    )


def noting(writer: Any) -> WriteNote | None:
    """How `writer` is told a sentence; None where it takes none.

    TensorBoard shows it as text, Weights & Biases in the run's summary.
    """
    if hasattr(writer, "add_text"):
        return lambda name, text, step: writer.add_text(f"spikeguard/{name}", text, step)
    summary = getattr(writer, "summary", None)
    if hasattr(writer, "log") and hasattr(summary, "update"):
        return lambda name, text, _: writer.summary.update({f"spikeguard/{name}": text})
    return None


def _each(add_scalar: Callable[..., Any], values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        add_scalar(name, value, step)
