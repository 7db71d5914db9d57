"""`metrics.jsonl`: one JSON object a line for every step and every evaluation, readable while the run goes on.

Knows nothing of models or run folders beyond the path of its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from frostline.checkpoint.atomic import disk_errors, write_file
from frostline.errors import CheckpointError


class MetricsLog:
    """Appends records to `path`; each has `step`, the number of optimizer steps done (1 after the first).

    A kill leaves at most one torn line at the end, which `read_metrics` passes over and `truncate_to` removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends one record; a number that is not finite is written as null, since JSON has no word for it."""
        record = {"step": step, **{key: _plain(value) for key, value in values.items()}}
        with disk_errors(self.path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        with disk_errors(self.path):  # closing writes what a failed flush has left
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def truncate_to(path: Path, step: int) -> None:
    """Cuts `path` back to the records of the first `step` steps, so that a resumed run writes the rest once."""
    if not path.exists():
        return
    kept = "".join(json.dumps(record) + "\n" for record in read_metrics(path) if record["step"] <= step)
    write_file(path, kept)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of `path` in order. Only the last line may be torn, by a kill.

    Raises:
        CheckpointError: another line is not one that `MetricsLog` writes.
    """
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:  # not JSON, or not UTF-8
            if number == len(lines):
                return
            raise _damaged(path, number, str(error)) from None
        if not isinstance(record, dict) or not isinstance(cast("dict[str, Any]", record).get("step"), int):
            raise _damaged(path, number, "no record with a step")
        yield cast("dict[str, Any]", record)


def _damaged(path: Path, number: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} is damaged in line {number}: {why}",
        where=path,
        possible="one JSON object with a step in each line, as the run wrote them",
        fix="restore the file, or delete it to go on without the numbers of the steps so far",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        return None
    return value
