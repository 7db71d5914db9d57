"""Labels: names, numbers and kinds of target, made from the training data.

Knows label values, not texts, tokens or models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from frostline.config.origin import Origin
from frostline.data.rows import PlaceOf, row_number
from frostline.errors import DataError

LabelKind = Literal["single_label", "multi_label", "regression"]
_KINDS: dict[str, str] = {
    "single_label": "one label each (text or whole number)",
    "multi_label": "a list of labels each",
    "regression": "a number each",
}
_CORRECT = "correct the data or `model.num_labels`"


@dataclass(frozen=True)
class LabelMap:
    """Names of the labels in the order of the model's outputs.

    Attributes:
        names: one per output; for regression the one name `value`.
        problem: single_label, multi_label or regression.
    """

    names: tuple[str, ...]
    problem: LabelKind

    @classmethod
    def from_values(
        cls,
        values: Sequence[object],
        problem: LabelKind | None = None,
        num_labels: int | None = None,
        origin: Origin | None = None,
        place_of: PlaceOf = row_number,
    ) -> LabelMap:
        """Labels of the training data.

        Args:
            values: one per example: a text or whole number (single_label), a list of them (multi_label), a float
                (regression). Whole numbers are ordered by value, texts by letter.
            problem: the kind, when the values do not decide it (None: taken from the values).
            num_labels: number of outputs, when it is known; whole-number labels are then 0 to `num_labels` - 1.
            place_of: where the example of an index stands, for messages.

        Raises:
            DataError: missing labels, values of mixed kind or not of `problem`, too few or too many labels.
        """
        kind = problem or _detect(values, origin, place_of)
        if kind == "regression":
            for index, value in enumerate(values):
                _number(value, index, origin, place_of)
            if num_labels not in (None, 1):
                raise _count_error(f"regression has one output, num_labels is {num_labels}", "1", origin)
            return cls(("value",), kind)
        found = {name for i, value in enumerate(values) for name in _names(value, kind, i, origin, place_of)}
        names = _ordered(found)
        if num_labels is not None:
            names = _extend(names, num_labels, origin)
        if len(names) < (1 if kind == "multi_label" else 2):
            raise _count_error(
                f"the training data has {'one label' if names else 'no label'}: {', '.join(names) or 'none'}",
                "two labels at least",
                origin,
                "correct the data" if num_labels is None else _CORRECT,
            )
        return cls(tuple(names), kind)

    @property
    def num_labels(self) -> int:
        return len(self.names)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def encode(
        self,
        values: Sequence[object],
        source: str = "the data",
        origin: Origin | None = None,
        place_of: PlaceOf = row_number,
    ) -> list[int] | list[float] | list[list[float]]:
        """Targets: an index (single_label), a list of 0.0 and 1.0 (multi_label), or a float (regression) each.

        Raises:
            DataError: labels that the training data never had, all of them listed with their counts.
        """
        if self.problem == "regression":
            return [_number(value, index, origin, place_of) for index, value in enumerate(values)]
        ids = self.label2id
        named = [_names(value, self.problem, index, origin, place_of) for index, value in enumerate(values)]
        unseen = Counter(name for names in named for name in names if name not in ids)
        if unseen:
            listed = ", ".join(f"{name!r} ({count:,} x)" for name, count in sorted(unseen.items())[:20])
            first = next(index for index, names in enumerate(named) if any(name in unseen for name in names))
            raise DataError(
                f"{source} has labels that the training data never had: {listed}; first: {place_of(first)}",
                where=origin or "the labels",
                possible=f"labels seen in training: {', '.join(self.names[:30])}",
                fix="correct these labels, add training examples for them, or remove these rows",
            )
        if self.problem == "single_label":
            return [ids[names[0]] for names in named]
        targets: list[list[float]] = []
        for names in named:
            row = [0.0] * len(self.names)
            for name in names:
                row[ids[name]] = 1.0
            targets.append(row)
        return targets

    def counts(self, values: Sequence[object], origin: Origin | None = None) -> dict[str, int]:
        """Number of examples of each label, in the order of `names` (0 where there is none); not for regression."""
        named = (_names(value, self.problem, index, origin, row_number) for index, value in enumerate(values))
        counted = Counter(name for names in named for name in names)
        return {name: counted[name] for name in self.names}

    def balanced_weights(self, values: Sequence[object], origin: Origin | None = None) -> list[float]:
        """Class weights n / (num_labels * count), as scikit-learn's "balanced": rare labels weigh more.

        Raises:
            DataError: the problem is not single_label, or a label has no example.
        """
        if self.problem != "single_label":
            raise DataError(
                f"class weights were asked for a {self.problem} problem",
                where=origin or "the labels",
                possible="class_weights with one label per example",
                fix="write `class_weights: none`",
            )
        counts = self.counts(values, origin)
        absent = [name for name, count in counts.items() if count == 0]
        if absent:
            raise DataError(
                f"balanced class weights need examples of every label; none of: {', '.join(absent)}",
                where=origin or "the labels",
                possible="a weight for each label by hand, as `class_weights: {name: 1.0}`",
                fix="add examples, lower `model.num_labels`, or give the weights",
            )
        return [len(values) / (len(counts) * count) for count in counts.values()]


def _detect(values: Sequence[object], origin: Origin | None, place_of: PlaceOf) -> LabelKind:
    kinds: dict[LabelKind, int] = {}
    for index, value in enumerate(values):
        if isinstance(value, list):
            kinds.setdefault("multi_label", index)
        elif isinstance(value, float):
            kinds.setdefault("regression", index)
        elif value is not None and value != "":
            kinds.setdefault("single_label", index)
        else:
            raise _missing_label(index, origin, place_of)
    if len(kinds) == 1:
        return next(iter(kinds))
    if set(kinds) == {"regression", "single_label"} and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    ):
        return "regression"  # 1 and 1.5 in one column: numbers
    listed = "; ".join(f"{_KINDS[kind]} ({place_of(index)})" for kind, index in kinds.items())
    raise DataError(
        f"the labels are of different kinds: {listed or 'there are none'}",
        where=origin or "the labels",
        possible="; ".join(_KINDS.values()),
        fix="make them one kind, or say which with `model.problem`",
    )


def _names(value: object, kind: LabelKind, index: int, origin: Origin | None, place_of: PlaceOf) -> list[str]:
    if kind == "multi_label":
        if not isinstance(value, list):
            raise _wrong_kind(value, kind, index, origin, place_of)
        return [_name(item, kind, index, origin, place_of) for item in cast(list[object], value)]
    return [_name(value, kind, index, origin, place_of)]


def _name(value: object, kind: LabelKind, index: int, origin: Origin | None, place_of: PlaceOf) -> str:
    if value is None or value == "":
        raise _missing_label(index, origin, place_of)
    if isinstance(value, str | int):  # bool too: False and True
        return str(value)
    raise _wrong_kind(value, kind, index, origin, place_of)


def _number(value: object, index: int, origin: Origin | None, place_of: PlaceOf) -> float:
    if value is None or value == "":
        raise _missing_label(index, origin, place_of)
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond the range of floats
            raise _wrong_kind(value, "regression", index, origin, place_of) from None
    elif isinstance(value, str):  # a CSV file has only text
        try:
            number = float(value)
        except ValueError:
            raise _wrong_kind(value, "regression", index, origin, place_of) from None
    if not math.isfinite(number):
        raise _wrong_kind(value, "regression", index, origin, place_of)
    return number


def _ordered(names: Iterable[str]) -> list[str]:
    """Integers by value, anything else by text; equal integers (`1`, `01`) by text, so that the order is one."""
    listed = sorted(names)
    # Python reads no whole number above 4,300 digits
    if all(len(name) < 4_000 and name.removeprefix("-").isdecimal() for name in listed):
        return sorted(listed, key=int)
    return listed


def _extend(names: list[str], num_labels: int, origin: Origin | None) -> list[str]:
    numbers = [str(number) for number in range(num_labels)]
    if set(names) <= set(numbers):
        return numbers
    if len(names) != num_labels:
        raise _count_error(
            f"num_labels is {num_labels}, the training data has {len(names)} labels: {', '.join(names[:20])}",
            str(len(names)),
            origin,
        )
    return names


def _count_error(what: str, possible: str, origin: Origin | None, fix: str = _CORRECT) -> DataError:
    return DataError(what, where=origin or "the labels", possible=possible, fix=fix)


def _missing_label(index: int, origin: Origin | None, place_of: PlaceOf) -> DataError:
    return DataError(
        f"{place_of(index)} has no label",
        where=origin or "the labels",
        possible="; ".join(_KINDS.values()),
        fix="label that example or remove it",
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"


def _wrong_kind(value: object, kind: LabelKind, index: int, origin: Origin | None, place_of: PlaceOf) -> DataError:
    return DataError(
        f"{place_of(index)} has the label {_shown(value)} ({type(value).__name__}), which does not fit {kind}",
        where=origin or "the labels",
        possible=_KINDS[kind],
        fix="correct that label, or say what the labels are with `model.problem`",
    )
