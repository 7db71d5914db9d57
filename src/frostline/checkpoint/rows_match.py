"""Do the trained rows in a file stand for the same rows of the table as those in a model? Shapes alone cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from frostline.adapters import rows_of
from frostline.errors import CheckpointError
from frostline.trainability import show_rows
from frostline.tree import TRAINED_ROWS, join_path


def require_same_rows(model: nn.Module, in_file: Mapping[str, tuple[int, ...]], *, where: Path) -> None:
    """Raise unless each path of `in_file` holds the rows that `model` trains there. Paths may be any name of a tensor.

    Raises:
        CheckpointError: names the rows that only one of the two has.
    """
    held = {join_path(path, TRAINED_ROWS): entry.rows for entry in rows_of(model).values() for path in entry.modules}
    differences: list[str] = []
    for path, rows in in_file.items():
        ours = held.get(path, ())
        if path not in held or ours == rows:  # one that the model lacks is told with the other tensors
            continue
        parts = {"only in the file": set(rows) - set(ours), "only in the model": set(ours) - set(rows)}
        listed = "; ".join(f"{words}: {show_rows(sorted(part))}" for words, part in parts.items() if part)
        differences.append(f"{path}: {listed}")
    if differences:
        raise CheckpointError(
            "the file holds other rows of the table than those that train in the model",
            where=where,
            possible="\n".join(differences),
            fix="use the `rows` that it was trained with",
        )
