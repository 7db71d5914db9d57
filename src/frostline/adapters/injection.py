"""Adds a method's adapters to a model, in place: linear in the number of modules, and all of them or none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from frostline.adapters.active import InjectedAdapter, adapters_of, record_adapter
from frostline.adapters.base import DEFAULT_NAME, PEFT
from frostline.adapters.layers.in_place import drop_adapter
from frostline.adapters.order import require_plain_weights, require_unwrapped
from frostline.adapters.targets import Targets, find_targets
from frostline.config.origin import Origins
from frostline.errors import AdapterError
from frostline.tree import ModuleTree, PlannedParam, collector_paused

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def planned_params(
    tree: ModuleTree, method: PEFT, targets: Targets, *, adapter: str = DEFAULT_NAME
) -> Mapping[str, Sequence[PlannedParam]]:
    """Path of each target -> the parameters that injection will add there."""
    return {
        target.path: method.planned(tree.modules[target.index].module, adapter=adapter) for target in targets.targets
    }


@collector_paused()
def inject(
    model: nn.Module,
    method: PEFT,
    *,
    adapter: str = DEFAULT_NAME,
    targets: Targets | None = None,
    tree: ModuleTree | None = None,
    origins: Origins | None = None,
) -> InjectedAdapter:
    """Adapt the targets of `method` in `model` and remember it there. Mutates `model`, sets no flag of the base.

    Args:
        model: bare, or with adapters of other names.
        adapter: name of the new adapter: letters, digits, `_` and `-`.
        targets: from `find_targets` on the same model; found here if None.
        tree: the model as it is now, where it has been read already.

    Returns:
        The record of what was added. Injecting an equal method under the same name again changes nothing.

    Raises:
        AdapterError: the name is taken by another method or not valid, a target cannot be adapted, or the model is
            inside DDP or sharded already.
    """
    # A factor bank is a ModuleDict, which takes no key that is one of its own attributes.
    if not _NAME.fullmatch(adapter) or hasattr(nn.ModuleDict, adapter) or adapter == "training":
        raise AdapterError(
            f"adapter name {adapter!r} is not valid",
            where="adapter",
            possible="letters, digits, _ and -, beginning with a letter or _; no attribute of modules such as `train`",
            fix="choose another name",
        )
    tree = ModuleTree.from_model(model) if tree is None else tree
    existing = adapters_of(model).get(adapter)
    if existing is not None:
        if existing.method == method:
            return existing
        raise AdapterError(
            f"the model already has an adapter named {adapter!r} ({existing.method.label})",
            where="adapter",
            possible=f"names in use: {', '.join(adapters_of(model))}",
            fix="choose another name",
        )
    require_unwrapped(model, "inject")
    if targets is None:
        targets = find_targets(tree, method, origins=origins)
    modules = [tree.modules[target.index].module for target in targets.targets]
    require_plain_weights({target.path: tree.modules[target.index].module for target in targets.targets})
    try:
        for target, module in zip(targets.targets, modules, strict=True):
            prefix, _, name = target.path.rpartition(".")
            method.transform(module, name, prefix, adapter=adapter)
    except BaseException:
        for module in modules:
            drop_adapter(module, adapter)
        raise
    record = InjectedAdapter(adapter, method, tuple(target.path for target in targets.targets))
    record_adapter(model, record)
    return record
