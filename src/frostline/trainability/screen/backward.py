"""Where backward stops: the lowest part of a model that needs a gradient. Reads the plan only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def backward_reaches(plan: TrainabilityPlan) -> str:
    """Path of the first block that holds anything trained, or of the first trained module outside the blocks.

    First by definition, which for stacks of layers is the order of the forward pass. A new module other than a table is
    a head, wherever it is defined: it counts only where nothing else trains.
    """
    types = {row.path: row.type_name for row in plan.modules if not row.is_adapter}
    heads: list[str] = []
    for path in plan.trainable:
        owner = path.rpartition(".")[0]
        while owner not in types:  # a factor of an adapter, which may not be there yet
            owner = owner.rpartition(".")[0]
        if plan.decisions[path].kind != "new" or "Embedding" in types[owner]:
            return _block_of(owner)
        heads.append(owner)
    return _block_of(heads[0]) if heads else "nothing"


def _block_of(module: str) -> str:
    """The numbered block that `module` lies in, or `module`."""
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return module or "the root" if number is None else ".".join(parts[: number + 1])
