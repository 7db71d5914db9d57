"""When something is due that the config asks for every N steps, every epoch, at the end or never.

Pure arithmetic over steps done (1 after the first optimizer step).
"""

from __future__ import annotations


def is_due(every: int | str, done: int, *, steps_per_epoch: int, total_steps: int) -> bool:
    """Whether it is due after `done` steps. Everything but `never` is also due at the end of the run."""
    if every == "never":
        return False
    if done >= total_steps:
        return True
    if every == "end":
        return False
    return done % (steps_per_epoch if every == "epoch" else int(every)) == 0
