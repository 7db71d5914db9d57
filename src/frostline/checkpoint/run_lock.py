"""The lock of a run folder: one writer at a time, and the mark by which a folder is known as a run folder.

Knows one file, `.lock`. The operating system lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from frostline.errors import CheckpointError

LOCK = ".lock"
_MARK = "frostline run folder"


def is_run_folder(path: Path) -> bool:
    """Whether a run was ever written to `path`."""
    file = path / LOCK
    return file.is_file() and _MARK in file.read_text(encoding="utf-8", errors="replace")


def require_free(path: Path) -> None:
    """Raise `CheckpointError` if another process writes the run folder `path` now. Changes nothing."""
    if (path / LOCK).is_file():
        descriptor = os.open(path / LOCK, os.O_RDWR)
        try:
            _lock(descriptor, path)
        finally:
            os.close(descriptor)


def take_lock(path: Path) -> int:
    """Lock the run folder `path` until the returned descriptor is closed.

    Raises:
        CheckpointError: another process holds it.
    """
    file = path / LOCK
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
        except CheckpointError:
            os.close(descriptor)
            raise
        # The holder before us may have removed the folder between our open and our lock.
        if file.exists() and os.fstat(descriptor).st_ino == file.stat().st_ino:
            break
        os.close(descriptor)
        path.mkdir(parents=True, exist_ok=True)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"what": _MARK, "pid": os.getpid(), "host": socket.gethostname()}).encode())
        os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 4096).decode(errors="replace")
        raise CheckpointError(
            f"another process writes the run folder {path}{_describe_holder(holder)}",
            where=path / LOCK,
            possible="one writer at a time",
            fix="wait for it or stop it, or choose another output_dir",
        ) from None


def _describe_holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return f" (process {holder['pid']} on {holder['host']})"
    except (ValueError, KeyError, TypeError):  # the holder has not written its name yet
        return ""
