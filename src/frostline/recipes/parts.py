"""Reads the sources of a config; takes duplicates, overlaps and the surplus out; keeps train, validation, test apart.

The same for every task; knows rows and which columns are their key, not what the columns mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frostline.config.origin import Origins
from frostline.data import count_overlap, deduplicate, load_source, remove_overlap, split, take
from frostline.data.rows import Rows

if TYPE_CHECKING:
    from frostline.config.models.config import Config
    from frostline.config.models.data import SourceConfig

#: The columns of one source that the model reads; raises when they are not there.
KeyColumns = Callable[[Rows, str], Sequence[str]]


@dataclass(frozen=True)
class Parts:
    """Rows of train, validation and test, without a common example unless `data.deduplicate` is false.

    Attributes:
        num_read: rows of the training source.
        num_duplicates: of these, the rows that went out.
        all_train: the training rows before `data.max_examples` took a sample: labels are made from them, so that a
            small sample has as many outputs as a large one.
        notes: one line each; also how many examples two parts shared.
    """

    train: Rows
    validation: Rows | None
    test: Rows | None
    all_train: Rows
    num_read: int
    num_duplicates: int
    notes: tuple[str, ...]

    @property
    def held_out(self) -> dict[str, Rows]:
        """The rows of validation and test, as far as there are any."""
        named = {"validation": self.validation, "test": self.test}
        return {name: rows for name, rows in named.items() if rows is not None}


def read_parts(config: Config, origins: Origins, key_columns: KeyColumns) -> Parts:
    """Reads what `config.data` names.

    Order: duplicates out of the training source, rows out that a more held-out source also has (test before validation
    before training), split, sample. So the validation examples are the same for every `data.max_examples`.
    `data.deduplicate: false` leaves all in, and counts what the parts share.

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

    def apart(rows: Rows, use: str, held_out: Rows, name: str) -> Rows:
        if data.deduplicate:
            left, shared = remove_overlap(
                rows, held_out, keys, at(name), "train on" if use == "training" else "validate on"
            )
        else:
            left, shared = rows, count_overlap(rows, held_out, keys, at(name))
        if shared:
            examples = f"{shared:,} {use} {'example is' if shared == 1 else 'examples are'}"
            end = f"out of {use}" if data.deduplicate else "kept (data.deduplicate: false)"
            notes.append(f"{examples} also in the {name} data: {end}")
        return left

    def read_held_out(source: SourceConfig, name: str) -> Rows:
        rows = read(source, name)
        key_columns(rows, name)  # they must be there too, under the names that the training data has
        return rows

    test = None if data.test is None else read_held_out(data.test, "test")
    if test is not None:
        train = apart(train, "training", test, "test")
    validation: Rows | None = None
    if isinstance(data.validation, int | float):
        train, validation = split(train, data.validation, seed, at("validation"))
    elif data.validation is not None:
        validation = read_held_out(data.validation, "validation")
    # What was split from training data without duplicates and without test examples shares none.
    if validation is not None and not (data.deduplicate and isinstance(data.validation, int | float)):
        if test is not None:
            validation = apart(validation, "validation", test, "test")
        train = apart(train, "training", validation, "validation")
    if validation is not None:
        validation = take(validation, config.evaluation.max_examples, seed)
    sample = take(train, data.max_examples, seed)
    return Parts(sample, validation, test, train, num_read, num_duplicates, tuple(notes))
