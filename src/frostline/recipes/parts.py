"""Reads the sources of a config; takes duplicates, overlaps and the surplus out; keeps train, validation, test apart.

The same for every task; knows rows and which columns are their key, not what the columns mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frostline.config.origin import Origins
from frostline.data import deduplicate, load_source, remove_overlap, split, take
from frostline.data.rows import Rows

if TYPE_CHECKING:
    from frostline.config.models.config import Config
    from frostline.config.models.data import SourceConfig

#: The columns of one source that the model reads; raises when they are not there.
KeyColumns = Callable[[Rows, str], Sequence[str]]


@dataclass(frozen=True)
class Parts:
    """Rows of train, validation and test, without a common example.

    Attributes:
        num_read: rows of the training source.
        num_duplicates: of these, the rows that went out.
        all_train: the training rows before `data.max_examples` took a sample: labels are made from them, so that a
            small sample has as many outputs as a large one.
        notes: one line each.
    """

    train: Rows
    validation: Rows | None
    test: Rows | None
    all_train: Rows
    num_read: int
    num_duplicates: int
    notes: tuple[str, ...]


def read_parts(config: Config, origins: Origins, key_columns: KeyColumns) -> Parts:
    """Reads what `config.data` names.

    Order: duplicates out of the training source, rows out that a validation or test source also has, split, sample. So
    the validation examples are the same for every `data.max_examples`.

    Args:
        key_columns: of (rows, name of the part); by them two rows are the same example.

    Raises:
        DataError: a source cannot be read, lacks a column, or leaves nothing to train on.
    """
    data, seed = config.data, config.training.seed
    at = origins.below("data").at
    notes: list[str] = []

    def read(source: SourceConfig, name: str) -> Rows:
        rows = load_source(
            source.source,
            source.split,
            source.name,
            at(name),
            encoding_errors=source.encoding_errors,
        )
        notes.extend(rows.notes)
        return rows

    train = read(data.train, "train")
    keys = key_columns(train, "train")
    num_read = len(train)
    if data.deduplicate:
        train, _ = deduplicate(train, keys, at("train"))
    num_duplicates = num_read - len(train)
    held_out: dict[str, Rows] = {}
    if data.test is not None:
        held_out["test"] = read(data.test, "test")
    if data.validation is not None and not isinstance(data.validation, int | float):
        held_out["validation"] = read(data.validation, "validation")
    for name, rows in held_out.items():
        # The key columns must be there too, under the names that the training data has.
        key_columns(rows, name)
        if data.deduplicate:
            train, removed = remove_overlap(train, rows, keys, at(name))
            if removed:
                notes.append(f"{removed:,} training examples are also in the {name} data: out of training")
    validation = held_out.get("validation")
    if isinstance(data.validation, int | float):
        train, validation = split(train, data.validation, seed, at("validation"))
    if validation is not None:
        validation = take(validation, config.evaluation.max_examples, seed)
    sample = take(train, data.max_examples, seed)
    return Parts(sample, validation, held_out.get("test"), train, num_read, num_duplicates, tuple(notes))
