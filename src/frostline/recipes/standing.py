"""How far a run has come and which rows it held out: what its checkpoints keep beside tensors, read for people.

Knows run folders and rows; nothing of models or the loop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from frostline.checkpoint import RunFolder
from frostline.checkpoint.json_file import read_json
from frostline.checkpoint.save import PROGRESS
from frostline.data.rows import Rows, place
from frostline.errors import DataError


def unfinished(run: RunFolder) -> str | None:
    """One line that says where a run stands that is not complete; None of one that is, or has no checkpoint.

    Raises:
        CheckpointError: the newest checkpoint does not say it.
    """
    newest = run.latest()
    if newest is None:
        return None
    stopped, done, total = read_json(
        newest / "state" / PROGRESS,
        lambda state: (
            bool(state["progress"].get("stopped_early")),
            int(state["progress"]["step"]),
            state["scheduler"].get("total_steps"),
        ),
    )
    if stopped or not isinstance(total, int) or done >= total:
        return None
    return f"the run is not complete: it stands at step {done:,} of {total:,}"


def describe_held_out(held_out: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    """Number and digest of the rows of each part, JSON-ready, for a checkpoint to keep."""
    return {name: {"num_rows": len(rows), "digest": _digest(rows)} for name, rows in held_out.items()}


def require_held_out(checkpoint: Path, held_out: Mapping[str, Rows], parts: Collection[str]) -> None:
    """Refuse to score `checkpoint` on rows that its run did not hold out: it may have been trained on them.

    A part that the checkpoint says nothing of, as a test source that was added later, is taken as it is.

    Args:
        held_out: the rows now, by part.
        parts: those to be scored.

    Raises:
        DataError: names the first part that differs.
    """
    then: dict[str, Any] = read_json(
        checkpoint / "state" / PROGRESS, lambda state: dict(state["progress"].get("held_out", {}))
    )
    for name, rows in held_out.items():
        if name in parts and name in then and then[name]["digest"] != _digest(rows):
            raise DataError(
                f"the {name} examples are not those that the run held out: the data has changed",
                where=place(rows.source, None),
                possible=f"{len(rows):,} examples, other than the {then[name]['num_rows']:,} of the run; "
                "some of them may have been trained on",
                fix="restore the data of the run; if its paths are relative, start in the folder that it was trained "
                "in; `frostline predict` takes any data",
            )


def _digest(rows: Rows) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=_stable).encode() + b"\n")
    return digest.hexdigest()


def _stable(value: Any) -> str:
    """A word for what JSON has none for, the same in every process: the `repr` of an image holds its address."""
    return repr(value) if isinstance(value, bytes | date | time | Decimal) else type(value).__name__
