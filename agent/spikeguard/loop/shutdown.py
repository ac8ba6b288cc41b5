"""How an attempt ends when nobody calls `finish()`: SIGTERM, or the interpreter's exit.

A handler that somebody else installed is left alone; after ours has flushed every guard of the
process, all at once, the signal does what it would have done.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from spikeguard.settings import Settings

SLACK_S = 1.0  # beyond `flush_s`; an ending that is not through by then is left behind


class Endings:
    """The hooks of one guard into the process's end."""

    def __init__(self, flush: Callable[[str], None], settings: Settings) -> None:
        self.flush, self.within_s = flush, settings.flush_s + SLACK_S
        handler = signal.getsignal(signal.SIGTERM)
        if _on_main_thread() and handler in (signal.SIG_DFL, on_sigterm):
            signal.signal(signal.SIGTERM, on_sigterm)
            _waiting.append(self)
        atexit.register(self._on_exit)

    def undo(self) -> None:
        """Take the hooks out."""
        atexit.unregister(self._on_exit)
        if self not in _waiting:
            return
        _waiting.remove(self)
        ours = not _waiting and signal.getsignal(signal.SIGTERM) == on_sigterm
        if ours and _on_main_thread():  # elsewhere it stays, and has nothing left to flush
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_exit(self) -> None:
        self.flush("exited without finish()")


_waiting: list[Endings] = []  # for SIGTERM, which a process has one handler of


def on_sigterm(number: int, _: FrameType | None) -> None:
    """Flush all guards, then let the signal do what it does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    began = time.monotonic()
    flushing = []
    for endings in _waiting:  # by threads, since what was interrupted may hold a lock
        thread = threading.Thread(target=endings.flush, args=("SIGTERM",), daemon=True)
        with suppress(RuntimeError):  # no thread can be had any more: then nothing is flushed
            thread.start()
        flushing.append((thread, endings.within_s))
    for thread, within_s in flushing:
        if thread.ident is not None:
            thread.join(max(0.0, began + within_s - time.monotonic()))
    os.kill(os.getpid(), number)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
