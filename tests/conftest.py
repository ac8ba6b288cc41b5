"""What holds for every test.

A job that a shell put in the background inherits Ctrl-C ignored, and so would every process that a
test starts and then interrupts: the handler set here is not inherited, the default is.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
