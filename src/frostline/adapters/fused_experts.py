"""Experts whose weights are single parameters of all of them together, and no layers: nothing that adapts layers
reaches them. Reads the tree, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from frostline.adapters.base import PEFT
from frostline.tree import ModuleTree, ParamRef


def fused_expert_note(tree: ModuleTree, method: PEFT, left_out: bytearray, trained: bytearray | None) -> str:
    """A remark on fused experts that `all-linear` leaves without an adapter, with counts; empty where there are none.

    Args:
        left_out: mask over modules that are not to be adapted anyway.
        trained: mask over parameters that train themselves; None where none does.
    """
    groups: dict[str, list[ParamRef]] = {}
    for index, ref in enumerate(tree.modules):
        if ref.own_param_end == ref.param_start or left_out[index] or ref.is_adapter:
            continue
        is_of_experts = "experts" in ref.path.split(".") or "Experts" in type(ref.module).__name__
        if not is_of_experts or method.supports(ref.module):
            continue
        for number in range(ref.param_start, ref.own_param_end):
            param = tree.params[number]
            name = param.path.rpartition(".")[2]
            if _is_weight(param, name) and not (trained and trained[number]):
                groups.setdefault(f"{ref.name}.{name}" if name == "weight" else name, []).append(param)
    if not groups:
        return ""
    fix = ", ".join(f'{{param: "*.{name}"}}' for name in groups)
    counts = ", ".join(f"{name} ({_count(params)})" for name, params in groups.items())
    return (
        f"not adapted, fused experts, which are parameters and no layers: {counts}; "
        f"unfreeze_modules [{fix}] trains them in full"
    )


def _is_weight(param: ParamRef, name: str) -> bool:
    # A fused bias has a row for each expert, and so the dimensions of a plain weight.
    return len(param.shape) >= 2 and param.dtype.is_floating_point and not name.endswith("bias")


def _count(params: Iterable[ParamRef]) -> str:
    params = list(params)
    elements = sum(param.num_elements for param in params)
    return f"{len(params):,} parameter{'s' if len(params) > 1 else ''} of {elements:,} elements"
