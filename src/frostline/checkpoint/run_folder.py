"""The folder of one run: who may write it, which checkpoints are complete, where `latest` and `best` point.

Knows folder names, links and the lock; of a checkpoint it reads no more than the manifest.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from frostline.checkpoint.atomic import disk_errors, recover_replaced, replace_link, sweep, write_file
from frostline.checkpoint.earlier_run import delete_earlier, empty, has_earlier, restore_earlier, set_aside
from frostline.checkpoint.manifest import FILE_NAME as MANIFEST
from frostline.checkpoint.manifest import Manifest
from frostline.checkpoint.run_lock import LOCK, is_run_folder, require_free, take_lock
from frostline.errors import CheckpointError

Mode = Literal["new", "resume", "overwrite"]
_STEP = re.compile(r"step-(\d{6,})")


class RunFolder:
    """A run folder, open for writing (one process at a time) or for reading.

    Attributes:
        path: the folder.
        writable: False for one from `RunFolder.read`.
    """

    def __init__(self, path: Path, lock: int | None, created: list[Path], fresh: bool) -> None:
        self.path = path
        self._lock = lock
        self._created = created
        self._fresh = fresh

    @classmethod
    def open(cls, path: str | Path, mode: Mode = "new") -> RunFolder:
        """Open `path` for writing and keep every other writer out until `close`.

        Args:
            path: the folder, made if it is not there.
            mode: `"new"` takes only a folder that is not there or is empty; `"resume"` goes on with what is there (or
                starts, if nothing is); `"overwrite"` starts anew, with an earlier run aside until the first checkpoint.

        Raises:
            CheckpointError: another process writes the folder; it exists and `mode` is `"new"`; it is not a run folder
                and `mode` is not `"new"`; it cannot be made.
        """
        path = Path(path)
        cls.require_usable(path, mode)
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        with disk_errors(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
                lock = take_lock(path)
            except OSError:
                _remove_made(path, created)
                raise
        run = cls(path, lock, created, fresh=not _content(path) or mode == "overwrite")
        try:
            run._repair()
            if mode == "overwrite" and _content(path):
                with disk_errors(path):
                    set_aside(path)
        except BaseException:
            run.close()
            raise
        return run

    @staticmethod
    def require_usable(path: str | Path, mode: Mode = "new") -> None:
        """Refuse what `open` would refuse now; keeps no lock and changes nothing.

        Raises:
            CheckpointError: see `open`.
        """
        path = Path(path)
        _require_writable(path)
        content = _content(path)
        marked = is_run_folder(path)
        if content and mode == "new":
            raise CheckpointError(
                f"the run folder {path} exists already and is not empty",
                where="output_dir",
                possible="--resume goes on with it, --overwrite starts again in its place"
                if marked
                else "a folder that is not there or is empty: this one was not made by frostline",
                fix="choose one of them, or another output_dir" if marked else "choose another output_dir",
            )
        if content and not marked:
            raise CheckpointError(
                f"{path} was not made by frostline, so it is left as it is ({', '.join(content[:4])} ...)",
                where="output_dir",
                possible="a folder that is not there, is empty, or holds an earlier run",
                fix="choose another output_dir",
            )
        require_free(path)

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Open an existing run for reading; takes no lock and changes nothing.

        Raises:
            CheckpointError: there is no run at `path`.
        """
        path = Path(path)
        if not (path / "checkpoints").is_dir():
            raise CheckpointError(
                f"{path} is not a run folder: it has no checkpoints/"
                if path.exists()
                else f"there is no run folder {path}",
                where=path,
                possible="a folder that `frostline train` made",
                fix="give the output_dir of a run",
            )
        return cls(path, None, [], fresh=False)

    @property
    def writable(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock is not None

    @property
    def checkpoint_root(self) -> Path:
        """The folder that holds the checkpoints."""
        return self.path / "checkpoints"

    def checkpoint_dir(self, step: int) -> Path:
        """Where the checkpoint of optimizer step `step` lies or will lie."""
        return self.checkpoint_root / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, in step order."""
        if not self.checkpoint_root.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.checkpoint_root.iterdir() if (match := _match(path))]
        return [path for _, path in sorted(found)]

    def latest(self) -> Path | None:
        """The complete checkpoint with the highest step (the link may lag behind it after a kill)."""
        complete = self.checkpoints()
        return complete[-1] if complete else None

    def best(self) -> Path | None:
        """The best checkpoint: the newest complete one that was the best when it was written.

        Raises:
            CheckpointError: the manifest of the one that the link `best` leads to is damaged; another's is passed over.
        """
        for path in reversed(self.checkpoints()):
            try:
                if Manifest.read(path).is_best:
                    return path
            except CheckpointError:
                link = self.checkpoint_root / "best"
                if link.is_symlink() and os.readlink(link) == path.name:
                    raise
        return None

    def find(self, which: str = "latest") -> Path:
        """The checkpoint called `which`: `latest`, `best` or `step-N`.

        Raises:
            CheckpointError: there is none of that name; the message lists those that are there.
        """
        path = {"latest": self.latest, "best": self.best}.get(which, lambda: None)()
        if path is None and (match := re.fullmatch(r"step-(\d+)", which)):
            path = self.checkpoint_dir(int(match[1]))
        if path is None or path not in self.checkpoints():
            names = [item.name for item in self.checkpoints()]
            if self.best() is not None:
                names.append("best")
            raise CheckpointError(
                f"the run has no checkpoint {which!r}",
                where=self.path,
                possible=", ".join(["latest", *names]) if names else "none: the run has written no checkpoint yet",
                fix="name one of those" if names else "train first",
            )
        return path

    def set_latest(self, path: Path) -> None:
        """Point `checkpoints/latest` at the checkpoint `path`."""
        replace_link(self.checkpoint_root / "latest", path.name)

    def set_best(self, path: Path) -> None:
        """Point `checkpoints/best` at the checkpoint `path`."""
        replace_link(self.checkpoint_root / "best", path.name)

    def link_trained_part(self) -> None:
        """Make `adapter` and `trained` of the run folder lead to the best checkpoint's, or the latest's without one."""
        which = "best" if self.best() is not None else "latest"
        for part in ("adapter", "trained"):
            if (self.checkpoint_root / which / part).is_dir():
                replace_link(self.path / part, f"checkpoints/{which}/{part}")

    def prune(self, keep: int) -> list[Path]:
        """Delete all but the newest `keep` checkpoints and the best one; also what lies aside: of killed saves, of an
        overwritten run.

        Returns the deleted checkpoints. The newest complete checkpoint is never deleted.
        """
        complete = self.checkpoints()
        if complete:
            delete_earlier(self.path)
        removed = [path for path in complete[: -max(keep, 1)] if path != self.best()]
        for path in removed:
            # Renamed first, so that a kill never leaves half a folder that looks complete.
            path.rename(path.with_name(f".tmp-removed-{path.name}"))
        sweep(self.checkpoint_root)
        return removed

    def write_text(self, name: str, text: str) -> Path:
        """Write the file `name` of the run folder atomically, and return its path."""
        path = self.path / name
        write_file(path, text)
        return path

    def discard_if_empty(self) -> bool:
        """Remove a folder that this start made and that holds no checkpoint; folders of earlier starts stay.

        For a start that failed before its first checkpoint. Returns whether the folder was removed; an earlier run that
        was to be overwritten is put back instead.
        """
        if not self._fresh or not self.writable or self.checkpoints():
            return False
        if has_earlier(self.path):
            restore_earlier(self.path)
            return False
        empty(self.path)
        if self._created:
            shutil.rmtree(self.path)
            for parent in self._created[1:]:
                if any(parent.iterdir()):
                    break
                parent.rmdir()
        else:
            (self.path / LOCK).unlink()
        self.close()
        return True

    def close(self) -> None:
        """Let other writers in. Closing twice does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repair(self) -> None:
        """Finish what a kill interrupted: an overwriting, a replaced folder, links that lag behind; sweep the rest.

        Only with the lock: what lies aside is then of a writer that is gone.
        """
        if self.checkpoints():
            delete_earlier(self.path)
        restore_earlier(self.path)
        sweep(self.path)
        if not self.checkpoint_root.is_dir():
            return
        recover_replaced(self.checkpoint_root)
        sweep(self.checkpoint_root)
        if (latest := self.latest()) is not None:
            self.set_latest(latest)
            if (best := self.best()) is not None:
                self.set_best(best)
            self.link_trained_part()


def _require_writable(path: Path) -> None:
    """`path` is a folder that can be written, or can be made."""
    with disk_errors(path):  # such as a name that is too long
        nearest = next(folder for folder in (path, *path.parents) if os.path.lexists(folder) or folder == folder.parent)
        is_folder = nearest.is_dir()
    if not is_folder:
        kind = "a link to nothing" if nearest.is_symlink() and not nearest.exists() else "a file"
        raise CheckpointError(
            f"{nearest} is {kind}, so {'it' if nearest == path else str(path)} cannot be the run folder",
            where="output_dir",
            possible="a folder that is not there, is empty, or holds an earlier run",
            fix="choose another output_dir",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"{path} cannot be the run folder: {nearest} cannot be written",
            where="output_dir",
            possible="a folder that this user can write",
            fix="choose another output_dir, or change the permissions",
        )


def _remove_made(path: Path, created: list[Path]) -> None:
    """Undo a start that could not even write its lock; what others have put there by now stays."""
    with suppress(OSError):
        if created and (path / LOCK).stat().st_size == 0:
            (path / LOCK).unlink()
        for folder in created:
            folder.rmdir()


def _content(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name != LOCK) if path.is_dir() else []


def _match(path: Path) -> re.Match[str] | None:
    match = _STEP.fullmatch(path.name)
    return match if match and not path.is_symlink() and (path / MANIFEST).is_file() else None
