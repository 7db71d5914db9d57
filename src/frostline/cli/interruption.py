"""What Ctrl-C says: what of the run is saved, how much will be done again, and the command that goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from frostline.checkpoint.manifest import FILE_NAME as MANIFEST
from frostline.errors import FrostlineError
from frostline.recipes.resuming import newest_checkpoint, step_reached

METRICS = "metrics.jsonl"


@contextmanager
def interruptible(folder: Path, arguments: Sequence[str], *, overwrites: bool) -> Iterator[None]:
    """Give a `KeyboardInterrupt` of the block the words for its user.

    Args:
        folder: of the run.
        arguments: of `frostline train` for the same run, without `--resume`.
        overwrites: an earlier run in `folder` is not the one that is interrupted.
    """
    earlier = _stamp(folder) if overwrites else None
    try:
        yield
    except KeyboardInterrupt:
        try:
            words = _words(folder, arguments, earlier)
        except (FrostlineError, OSError, ValueError):  # a run that is damaged: the next command will say it
            words = ""
        raise KeyboardInterrupt(words) from None


def _words(folder: Path, arguments: Sequence[str], earlier: tuple[Path, int] | None) -> str:
    newest = _stamp(folder)
    if newest is None or newest == earlier:
        kept = f"; the earlier run in {folder} is as it was" if newest is not None else ""
        return f"interrupted before the first checkpoint: nothing was saved{kept}"
    saved = step_reached(folder)
    done = max(saved, _last_step(folder / METRICS))
    lost = done - saved
    again = f"{lost:,} step{'s' * (lost != 1)} will be done again" if lost else "nothing is lost"
    command = shlex.join(["frostline", "train", *arguments, "--resume"])
    return f"interrupted at step {done:,}: step {saved:,} is saved, {again}\n  go on with: {command}"


def _stamp(folder: Path) -> tuple[Path, int] | None:
    """Name and time of the newest checkpoint: a run that was put back has the stamp that it had."""
    newest = newest_checkpoint(folder)
    return None if newest is None else (newest, (newest / MANIFEST).stat().st_mtime_ns)


def _last_step(metrics: Path) -> int:
    from frostline.training.metrics_log import read_metrics  # brings torch, which nothing before this needs

    return max((int(record["step"]) for record in read_metrics(metrics)), default=0) if metrics.is_file() else 0
