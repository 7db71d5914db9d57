"""Rows: a small in-memory table of columns, what every data source is read into.

Reading a folder of texts must not cost the import of a data-set library, so this is plain lists; `to_dataset` and
`from_dataset` are the bridge. Knows nothing of files, tokenizers or labels.
"""

from __future__ import annotations

import difflib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from frostline.config.origin import Origin
from frostline.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


#: Index of a row to the words for its place, as `mail.csv, line 21`.
PlaceOf = Callable[[int], str]


def row_number(index: int) -> str:
    """The place of a row of which nothing but its index is known."""
    return f"row {index}"


@dataclass(frozen=True)
class Places:
    """Where the rows that were read stand in their files. One integer a row at most, so that a million cost little.

    Attributes:
        files: the files, in the order of their rows.
        starts: of each file the index of its first row.
        lines: of each row the line where it begins, from 1; empty where files have no lines.
        whole: a file is one row, so that its name says all.
    """

    files: Sequence[str]
    starts: Sequence[int] = (0,)
    lines: Sequence[int] = ()
    whole: bool = False

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Places:
        """Those of the rows of several files, of one kind and as they were read, one behind the other."""
        files: list[str] = []
        starts: list[int] = []
        lines = array("q")
        num = 0
        for part in parts:
            places = part.places or cls((part.source,))
            files += places.files
            starts += [num + start for start in places.starts]
            lines.extend(places.lines)
            num += len(part)
        return cls(files, starts, lines)

    def name(self, row: int) -> str:
        """`data/mail.csv, line 21`, `mail.parquet, row 19` (rows count from 0), `texts/spam/7.txt`."""
        # the last of those that begin there: a file without rows begins where the next one does
        index = bisect_right(self.starts, row) - 1
        file = self.files[index]
        if self.whole:
            return file
        return f"{file}, line {self.lines[row]}" if self.lines else f"{file}, row {row - self.starts[index]}"


@dataclass(frozen=True)
class Rows:
    """Columns of equal length.

    Attributes:
        columns: column name to its values, one per row. A value that a row lacks is None.
        source: what was read, for messages.
        notes: what a user should be told about the reading (replaced bytes, folders without texts), one line each.
        places: of all the rows that were read.
        numbers: of each row its index among these; None where none was taken out or moved.
    """

    columns: Mapping[str, Sequence[Any]]
    source: str = "rows"
    notes: tuple[str, ...] = ()
    places: Places | None = field(default=None, compare=False, repr=False)
    numbers: Sequence[int] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"columns of different length: {lengths}",
                where=self.source,
                possible="one value in every column for each row",
                fix="make the columns equally long",
            )

    @classmethod
    def from_dicts(cls, dicts: Iterable[Mapping[str, Any]], source: str = "rows", notes: tuple[str, ...] = ()) -> Rows:
        """One row per mapping; columns are the union of the keys, in order of first appearance."""
        columns: dict[str, list[Any]] = {}
        for index, row in enumerate(dicts):
            for key, value in row.items():
                column = columns.get(key)
                if column is None:
                    column = columns[key] = [None] * index
                column.append(value)
            if len(row) != len(columns):
                for column in columns.values():
                    if len(column) == index:
                        column.append(None)
        return cls(columns, source, notes)

    @classmethod
    def from_dataset(cls, dataset: Dataset, source: str) -> Rows:
        """Rows of a `datasets.Dataset`; class-label columns become the names of the labels."""
        table: Any = dataset
        columns: dict[str, list[Any]] = {}
        for name in table.column_names:
            values = list(table[name])
            feature: Any = table.features[name]
            if type(feature).__name__ == "ClassLabel":
                # -1 is the mark of hidden labels in published test splits
                values = [None if value is None or value < 0 else feature.int2str(value) for value in values]
            columns[name] = values
        return cls(columns, source)

    def to_dataset(self) -> Dataset:
        """The same rows as a `datasets.Dataset` (imports datasets)."""
        from datasets import Dataset

        return Dataset.from_dict({name: list(values) for name, values in self.columns.items()})

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __len__(self) -> int:
        return next((len(values) for values in self.columns.values()), 0)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self)):
            yield self[index]

    def column(self, name: str, origin: Origin | None = None) -> Sequence[Any]:
        """Values of one column.

        Raises:
            DataError: there is no such column; lists the columns there are.
        """
        if name in self.columns:
            return self.columns[name]
        raise missing_column(self, name, origin)

    def select(self, indices: Iterable[int]) -> Rows:
        """The rows at `indices`, in that order."""
        chosen = array("q", indices)
        numbers = chosen if self.numbers is None else array("q", [self.numbers[i] for i in chosen])
        columns = {name: [values[i] for i in chosen] for name, values in self.columns.items()}
        return replace(self, columns=columns, numbers=numbers)

    def place_of(self, index: int) -> str:
        """Where the row at `index` stands in its source, whatever was taken out or moved since it was read."""
        number = index if self.numbers is None else self.numbers[index]
        return f"{self.source}, {row_number(number)}" if self.places is None else self.places.name(number)

    def with_notes(self, *notes: str) -> Rows:
        """The same rows with more notes."""
        return replace(self, notes=self.notes + notes)


def missing_column(rows: Rows, name: str, origin: Origin | None, use: str | None = None) -> DataError:
    """The error for a column that is not there; `use` is the key of `data.columns` that would name another."""
    names = rows.column_names
    near = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names) if names else "none"
    key = use or name
    fix = f"set `data.columns.{key}: {near[0] if near else 'NAME'}`, or rename the column in the data"
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        fix = "the file is not separated by commas: save it with commas, or as .tsv with tabs"
    return DataError(
        f"there is no column {name!r} in {rows.source}",
        where=place(rows.source, origin),
        possible=f"columns: {listed}" + (f" (nearest: {near[0]})" if near else ""),
        fix=fix,
    )


def place(source: object, origin: Origin | None) -> str:
    """`data/train.jsonl, from config.yaml, line 12: data.train`."""
    return str(source) if origin is None else f"{source}, from {origin}"
