"""What a plan notes about the texts and labels of a classification that are probably not meant as they are.

Knows rows and labels; changes neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from frostline.data.labels import LabelMap
from frostline.data.rows import Rows

_NUM_NAMES = 8  # labels that a note names


def label_notes(labels: LabelMap, values: Sequence[object]) -> list[str]:
    """Labels that look like one in two spellings, and labels with a single example. None for a regression.

    Args:
        values: the label of every training example, before `data.max_examples`.
    """
    if labels.problem == "regression":
        return []
    counts = labels.counts(values)
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    notes: list[str] = []
    groups = [names for names in alike.values() if len(names) > 1]
    if groups:
        listed = "; ".join(", ".join(f"{name!r} ({counts[name]:,} x)" for name in names) for names in groups)
        notes.append(f"labels that differ only in white space or case are different labels: {listed}")
    single = [name for name, num in counts.items() if num == 1]
    if single:
        listed = ", ".join(map(repr, single[:_NUM_NAMES]))
        listed += f" and {len(single) - _NUM_NAMES:,} more" if len(single) > _NUM_NAMES else ""
        notes.append(f"{'a label' if len(single) == 1 else f'{len(single):,} labels'} with one example: {listed}")
    return notes


def blank_notes(rows: Rows, keys: Sequence[str], part: str) -> list[str]:
    """How many examples of a part of the data have no text but white space in all of the columns `keys`."""
    columns = [rows.column(key) for key in keys]
    blank = [i for i, values in enumerate(zip(*columns, strict=True)) if not any(_has_text(value) for value in values)]
    if not blank:
        return []
    texts = "text is" if len(blank) == 1 else "texts are"
    name = "training" if part == "train" else part
    return [f"{len(blank):,} {name} {texts} empty or blank (first: {rows.place_of(blank[0])})"]


def _has_text(value: object) -> bool:
    # what is no text is refused when it is encoded
    return not isinstance(value, str) or bool(value.strip())
