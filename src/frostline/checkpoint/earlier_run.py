"""The earlier run of a folder that is being overwritten: kept aside until the new run has its first checkpoint.

A kill at any moment leaves the earlier run or the new one whole. Knows names of entries in a run folder; who may write
it, and what a complete checkpoint is, is for `run_folder.py`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from frostline.checkpoint.atomic import remove, sync_directory
from frostline.checkpoint.run_lock import LOCK

EARLIER = ".earlier-run"
# While entries move, in either direction; what lies beside it then belongs to the earlier run too. Not a name that is
# swept away.
_MOVING = ".moving-earlier-run"


def set_aside(path: Path) -> None:
    """Move all that the run folder `path` holds into its folder `.earlier-run`, which appears in one step."""
    moving = path / _MOVING
    try:
        moving.mkdir()
        for entry in _entries(path):
            os.rename(entry, moving / entry.name)
        os.rename(moving, path / EARLIER)
        sync_directory(path)
    except BaseException:
        restore_earlier(path)
        raise


def has_earlier(path: Path) -> bool:
    """Whether an earlier run lies aside in the run folder `path`, whole or half moved."""
    return (path / EARLIER).exists() or (path / _MOVING).exists()


def restore_earlier(path: Path) -> None:
    """Put the earlier run back where it was, in place of what has come since. Does nothing where there is none."""
    if (path / EARLIER).exists():
        empty(path)
        os.rename(path / EARLIER, path / _MOVING)
    if (path / _MOVING).exists():
        for entry in list((path / _MOVING).iterdir()):
            os.rename(entry, path / entry.name)
        (path / _MOVING).rmdir()
        sync_directory(path)


def delete_earlier(path: Path) -> None:
    """Delete the earlier run, if there is one: the new one has a checkpoint."""
    if (path / EARLIER).exists():
        shutil.rmtree(path / EARLIER)


def empty(path: Path) -> None:
    """Delete all that the run folder `path` holds, but its lock and the earlier run."""
    for entry in _entries(path):
        remove(entry)


def _entries(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name not in (LOCK, EARLIER, _MOVING)]
