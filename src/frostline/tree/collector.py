"""Keeps Python's cyclic garbage collector quiet where a large model is read into hundreds of thousands of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, and inside a function that it decorates, no cycle is looked for; then it is as it was before.

    For sections that are bounded by the size of a model and make no cycles: the collector would walk all objects of the
    model several times, and find nothing. It is a setting of the process, so other threads collect nothing meanwhile.
    What was made lives on, so at the end it is counted as old without a walk over it: freezing all objects and
    unfreezing them does just that. Not where somebody has frozen objects: unfreezing would take in theirs.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
