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
from typing import Any


class Endings:
    """The hooks of one guard into the process's end."""

    def __init__(self, flush: Callable[[str], None], handle_sigterm: bool) -> None:
        self._flush = flush
        self._handles = handle_sigterm and _nobody_handles_sigterm()
        if self._handles:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        atexit.register(self._on_exit)

    def undo(self) -> None:
        """Take the hooks out."""
        atexit.unregister(self._on_exit)
        if self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False

    def _on_exit(self) -> None:
        self._flush("exited without finish()")

    def _on_sigterm(self, number: int, _: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._flush("SIGTERM")
        os.kill(os.getpid(), number)


def _nobody_handles_sigterm() -> bool:
    on_main = threading.current_thread() is threading.main_thread()
    return on_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
