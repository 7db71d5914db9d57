"""One parameter's decision and the rule that made it: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from frostline.config.origin import Origin


@dataclass(frozen=True)
class Rule:
    """Why a parameter trains or not.

    Attributes:
        kind: `baseline`, `new`, `adapter`, `freeze`, `unfreeze` or `required` (the framework freezes it).
        text: the rule in words, such as `freeze_modules "bert"`.
        origin: where it was written; None for rules that nobody wrote.
        single: it selects single parameters, not whole modules.
    """

    kind: str
    text: str
    origin: Origin | None = field(default=None, compare=False)
    single: bool = False

    @property
    def is_explicit(self) -> bool:
        """Whether the user wrote it."""
        return self.kind in ("freeze", "unfreeze")

    def __str__(self) -> str:
        if self.origin is not None and (self.origin.line is not None or self.origin.file is not None):
            place = self.origin.short if self.origin.line is not None else self.origin.file
            return f"{place}: {self.text}"
        return self.text


BUILT_TRAINABLE = Rule("baseline", "baseline: trains as built")
BUILT_FROZEN = Rule("baseline", "baseline: the model built it frozen")
PEFT_FREEZES = Rule("baseline", "baseline: PEFT freezes the base")
NEW_TRAINS = Rule("new", "new parameters train")


class Decision(NamedTuple):
    """What the plan says of one tensor. (A named tuple: large models have tens of thousands.)

    Attributes:
        path: its first canonical name.
        trains: whether it learns.
        rule: the last matching entry of the winning list, or the baseline.
        note: a remark for the reader, empty for most.
        shape: global shape.
        dtype: name of the dtype when resolved, such as `float32`.
        kind: `base`, `new` (the base files do not hold it), `adapter`, or `rows` (those rows of a frozen weight that
            train, a parameter of their own that is laid over it).
        aliases: other canonical names of the same tensor.
        conditional: it may stay without a gradient in single steps (an expert, the branch of a modality).
        rows: the indices along dim 0 that train, where not all do; None for the whole tensor.
    """

    path: str
    trains: bool
    rule: Rule
    note: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    aliases: tuple[str, ...] = ()
    conditional: bool = False
    rows: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        """Elements at the global shape."""
        return math.prod(self.shape)
