"""How an attempt ends when nobody calls `finish()`: SIGTERM, or the interpreter's exit.

Law: a handler that somebody else installed is left alone; after ours has flushed, the signal does
what it would have done. Nothing here waits longer than the flush allows.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spikeguard.settings import Settings

SLACK_S = 1.0  # beyond `flush_s`; an ending that is not through by then is left behind


class Endings:
    """The hooks of one guard into the process's end."""

    def __init__(self, flush: Callable[[str], None], settings: Settings) -> None:
        self._flush, self._within_s = flush, settings.flush_s + SLACK_S
        self._handles = settings.handle_sigterm and _nobody_handles_sigterm()
        if self._handles:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        atexit.register(self._on_exit)

    def undo(self) -> None:
        """Take the hooks out."""
        atexit.unregister(self._on_exit)
        ours = self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm
        if ours and _on_main_thread():  # elsewhere it stays, and has nothing left to flush
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False

    def _on_exit(self) -> None:
        self._flush("exited without finish()")

    def _on_sigterm(self, number: int, _: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._flush_beside("SIGTERM")
        os.kill(os.getpid(), number)

    def _flush_beside(self, reason: str) -> None:
        """By a thread, since what was interrupted may hold a lock that the flush waits for."""
        flushing = threading.Thread(target=self._flush, args=(reason,), daemon=True)
        with suppress(RuntimeError):  # no thread can be had any more: then nothing is flushed
            flushing.start()
            flushing.join(self._within_s)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _nobody_handles_sigterm() -> bool:
    return _on_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
