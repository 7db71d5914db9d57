"""Writes that a kill or a full disk cannot tear: a file or a folder is there whole, or not at all.

Knows nothing of what the files hold. A rename within one folder is the only step that makes anything visible.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from frostline.errors import CheckpointError

_REPLACED = ".tmp-replaced-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors reports an operating system error only as text.
_FULL_TEXT = tuple(text for number in _FULL for text in (f"os error {number})", f"code: {number},"))


def sync_file(path: Path) -> None:
    """Return when the bytes of `path` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Return when the entries of the folder `path` (new names, renames) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """`sync_file` for every file below `path` and `sync_directory` for every folder, the root last."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            file = Path(folder, name)
            if not file.is_symlink():
                sync_file(file)
        sync_directory(Path(folder))


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path`, replacing what was there in one step.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written; the old file is still whole.
    """
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with disk_errors(path):
        try:
            with open(aside, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def publish_directory(aside: Path, final: Path) -> None:
    """Make the finished folder `aside` appear as `final`; both lie in the same parent.

    A folder already called `final` is first moved to `replaced_name(final)`. If a kill comes between the two renames,
    `recover_replaced` puts it back and `standing` finds it.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    with disk_errors(final):
        sync_tree(aside)
        old = replaced_name(final)
        if final.exists():
            if old.exists():
                shutil.rmtree(old)
            os.rename(final, old)
        os.rename(aside, final)
        sync_directory(final.parent)
        if old.exists():
            shutil.rmtree(old)


def replaced_name(final: Path) -> Path:
    """Where `publish_directory` keeps the folder that it is replacing."""
    return final.with_name(f"{_REPLACED}{final.name}")


def recover_replaced(parent: Path) -> None:
    """Undo the half of every `publish_directory` in `parent` that a kill interrupted between its two renames."""
    for old in parent.glob(f"{_REPLACED}*"):
        _put_back(old.with_name(old.name.removeprefix(_REPLACED)))


def standing(final: Path) -> Path:
    """Where to read what was published as `final`: there, or aside where a kill came between the two renames.

    Reading changes nothing, so the folder is not put back; the next `publishing` does that.
    """
    if os.path.lexists(final):  # first: "." has no name to put another beside
        return final
    old = replaced_name(final)
    return old if os.path.isdir(old) else final


@contextmanager
def publishing(final: Path) -> Iterator[Path]:
    """A new folder to write into, which appears as `final` when the block ends without an error.

    What lay at `final` is replaced. There is a moment between two renames with nothing at `final`; a kill in it loses
    nothing, see `standing`. After an error nothing is left behind, and folders made on the way are gone again.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    with disk_errors(final):
        created = [folder for folder in final.parents if not folder.exists()]
        aside = final.with_name(f".tmp-{final.name}-{os.getpid()}")
        try:
            _put_back(final)
            if aside.exists():  # of a process with this number that was killed; containers count from 1 again
                shutil.rmtree(aside)
            aside.mkdir(parents=True)
            yield aside
            publish_directory(aside, final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            for folder in created:
                with suppress(OSError):  # never made, or somebody else's by now
                    folder.rmdir()
            raise


def _put_back(final: Path) -> None:
    old = replaced_name(final)
    if old.exists() and not os.path.lexists(final):
        os.rename(old, final)


def sweep(folder: Path) -> None:
    """Remove what writers in `folder` left aside when they were killed. Only where no other process writes."""
    for stale in folder.glob(".tmp-*"):
        remove(stale)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link `link` at the relative path `target`, in one step.

    Raises:
        CheckpointError: something that is not a link lies at `link`, or the folder cannot be written.
    """
    if link.exists() and not link.is_symlink():
        raise CheckpointError(
            f"{link.name!r} is a file or folder, not a link",
            where=link,
            possible="a link that Frostline made",
            fix="move it away",
        )
    if link.is_symlink() and os.readlink(link) == target:
        return  # nothing to write: a command that is refused later must leave no trace
    aside = link.with_name(f".tmp-{link.name}-{os.getpid()}")
    with disk_errors(link):
        aside.unlink(missing_ok=True)
        os.symlink(target, aside)
        os.replace(aside, link)
        sync_directory(link.parent)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system error while `path` is written into a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:  # torch.distributed.checkpoint's own exception is no Exception
        reason = _reason(error)
        if reason is None:
            raise
        full = reason == "full"
        raise CheckpointError(
            f"the disk is full: {path.name} could not be written" if full else f"cannot write {path.name}: {reason}",
            where=path,
            possible=_free_space(path) if full else "a folder that exists and can be written",
            fix="free some space (lower checkpoint.keep, or another output_dir), then go on with --resume"
            if full
            else "choose another place, or change the permissions",
        ) from error


def _reason(error: BaseException) -> str | None:
    """`"full"`, the text of another operating system error, or None if `error` is not about the disk."""
    if isinstance(error, shutil.Error):  # of copytree: all its failures, as text
        return "full" if any(f"[Errno {number}]" in str(error) for number in _FULL) else str(error)
    if isinstance(error, OSError):
        return "full" if error.errno in _FULL else str(error)
    # One exception per process, each wrapped as (exception, traceback), as torch.distributed.checkpoint reports them.
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        for failure in failures.values():  # pyright: ignore[reportUnknownVariableType]
            inner = failure[0] if isinstance(failure, tuple) else failure  # pyright: ignore[reportUnknownVariableType]
            if isinstance(inner, BaseException) and (reason := _reason(inner)) is not None:
                return reason
    if type(error).__name__ == "SafetensorError" and re.search("io ?error|i/o error", str(error), re.IGNORECASE):
        return "full" if any(text in str(error) for text in _FULL_TEXT) else str(error)
    if type(error) is Exception and "(os error " in str(error):  # what the tokenizers library raises
        return "full" if any(text in str(error) for text in _FULL_TEXT) else str(error)
    return None


def _free_space(path: Path) -> str:
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB are free on the disk of {folder}"
