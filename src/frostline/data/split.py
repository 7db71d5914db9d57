"""Split: duplicates out, then train and validation apart, so that no example stands on both sides.

Pure functions of rows and a seed: the same rows and seed give the same parts on every machine. Knows nothing of files
or tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterator, Sequence

from frostline.config.origin import Origin
from frostline.data.rows import Rows
from frostline.errors import DataError


def deduplicate(rows: Rows, keys: Sequence[str], origin: Origin | None = None) -> tuple[Rows, int]:
    """Keep the first row of each value of the columns `keys`; returns the rows and how many were removed.

    Give the columns that the model reads, not the label: two labels for one text are also a duplicate (see
    `count_conflicts`), since a text in train must not be in validation under another label.
    """
    seen: set[Hashable] = set()
    kept: list[int] = []
    for index, key in enumerate(_keys(rows, keys, origin)):
        if key not in seen:
            seen.add(key)
            kept.append(index)
    removed = len(rows) - len(kept)
    return (rows.select(kept) if removed else rows), removed


def count_conflicts(rows: Rows, keys: Sequence[str], label: str, origin: Origin | None = None) -> int:
    """How many different values of `keys` occur with more than one label."""
    first: dict[Hashable, Hashable] = {}
    conflicts: set[Hashable] = set()
    for key, (value,) in zip(_keys(rows, keys, origin), _keys(rows, [label], origin), strict=True):
        if first.setdefault(key, value) != value:
            conflicts.add(key)
    return len(conflicts)


def remove_overlap(
    rows: Rows, other: Rows, keys: Sequence[str], origin: Origin | None = None, use: str = "train on"
) -> tuple[Rows, int]:
    """Remove from `rows` what is also in `other` (which is held out); returns rows and how many went.

    Args:
        use: what `rows` are for, to complete "nothing is left to" in the message.

    Raises:
        DataError: nothing is left: both are the same data.
    """
    kept = _not_in(rows, other, keys, origin)
    if not kept:
        raise DataError(
            f"every example of {rows.source} is also in {other.source}, so nothing is left to {use}",
            where=origin or rows.source,
            possible="training, validation and test data that are not the same data",
            fix="name another source, a fraction (`validation: 0.1`) to split it from the training data, or keep what "
            "they share with `deduplicate: false`",
        )
    removed = len(rows) - len(kept)
    return (rows.select(kept) if removed else rows), removed


def count_overlap(rows: Rows, other: Rows, keys: Sequence[str], origin: Origin | None = None) -> int:
    """How many of `rows` are also in `other`."""
    return len(rows) - len(_not_in(rows, other, keys, origin))


def _not_in(rows: Rows, other: Rows, keys: Sequence[str], origin: Origin | None) -> list[int]:
    held_out = set(_keys(other, keys, origin))
    return [index for index, key in enumerate(_keys(rows, keys, origin)) if key not in held_out]


def split(rows: Rows, validation: float | int, seed: int, origin: Origin | None = None) -> tuple[Rows, Rows]:
    """Split into (train, validation) by a permutation that depends on `seed` and the number of rows alone.

    Args:
        rows: without duplicates (`deduplicate` first), otherwise both parts can hold the same example.
        validation: a fraction (float, 0 < x < 1; at least one example) or a number of examples (int).
        seed: any integer.

    Raises:
        DataError: the fraction or number leaves no example on one side.
    """
    num_rows = len(rows)
    if isinstance(validation, float):
        if not 0 < validation < 1:
            raise _bad_split(validation, num_rows, origin)
        num_validation = max(1, round(num_rows * validation))
    else:
        num_validation = validation
    if not 0 < num_validation < num_rows:
        raise _bad_split(validation, num_rows, origin)
    order = _permutation(num_rows, seed, "split")
    return rows.select(order[num_validation:]), rows.select(order[:num_validation])


def take(rows: Rows, num: int | None, seed: int) -> Rows:
    """A random sample of `num` rows (all when None or when there are no more), reproducible by `seed`.

    Random and not the first ones, because sources are often sorted by label. The sample of 100 is within that of 200.
    """
    if num is None or num >= len(rows):
        return rows
    return rows.select(_permutation(len(rows), seed, "take")[:num])


def _permutation(num: int, seed: int, purpose: str) -> list[int]:
    order = list(range(num))
    random.Random(f"{purpose} {seed}").shuffle(order)  # a text seed is hashed by Python the same way everywhere
    return order


def _keys(rows: Rows, keys: Sequence[str], origin: Origin | None) -> Iterator[tuple[Hashable, ...]]:
    columns = [rows.column(key, origin) for key in keys]
    for values in zip(*columns, strict=True):
        # only strings compare as they are; the rest (messages, lists) through one canonical text
        yield tuple(
            value if isinstance(value, str) else (json.dumps(value, sort_keys=True, default=str),) for value in values
        )


def _bad_split(validation: float | int, num_rows: int, origin: Origin | None) -> DataError:
    return DataError(
        f"validation: {validation} of {num_rows:,} examples leaves no example for training or for validation",
        where=origin or "validation",
        possible=f"a fraction between 0 and 1, or a number from 1 to {max(num_rows - 1, 1):,}"
        if num_rows > 1
        else "at least two different examples",
        fix="choose another value, name a validation source, or write `validation: null` to train without",
    )
