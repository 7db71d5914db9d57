"""What a PEFT method will add to a model, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frostline.trainability.decision import Rule
from frostline.tree import PlannedParam


@dataclass(frozen=True)
class AdapterTargets:
    """What a PEFT method will add, as data: no method object, no module.

    Attributes:
        label: shown in the plan, such as `LoRA r8`.
        rules: path of each adapted module -> the rule that chose it.
        planned: path of each adapted module -> the parameters that injection creates there.
        notes: remarks on what was skipped and why.
        conditional: paths of adapted modules whose selector says `conditional: true`.
    """

    label: str
    rules: Mapping[str, Rule]
    planned: Mapping[str, Sequence[PlannedParam]]
    notes: tuple[str, ...] = ()
    conditional: frozenset[str] = frozenset()
