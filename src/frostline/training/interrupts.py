"""Ctrl-C that cannot get lost.

Python raises `KeyboardInterrupt` wherever the program happens to be. Deep inside torch or a library that may be within
C code that clears errors, or within a broad `except`: then the run would go on as if nothing had been asked.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether Ctrl-C was pressed in this run."""

    def __init__(self) -> None:
        self.seen = False

    def check(self) -> None:
        """Raise the `KeyboardInterrupt` that was raised before and did not arrive."""
        if self.seen:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


@contextmanager
def remembered_interrupts() -> Iterator[Interrupts]:
    """Remember Ctrl-C inside, besides raising it; a handler that somebody else installed stays in charge."""
    interrupts = Interrupts()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts._take)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
