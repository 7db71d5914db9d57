"""Why a layer that a method supports cannot be adapted where it stands. Reads the tree, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from torch import nn

from frostline.adapters.base import PEFT
from frostline.adapters.weight_readers import reader_of
from frostline.tree import AdapterPart, ModuleTree, join_path

_WEIGHT_NAMES = (
    "weight",
    # torch.nn.utils.parametrize; its weight_norm has two originals.
    *("parametrizations.weight.original", "parametrizations.weight.original0", "parametrizations.weight.original1"),
    # The hooks that it replaced: weight_norm, spectral_norm and prune of torch.nn.utils.
    *("weight_g", "weight_v", "weight_orig"),
)


def weights_of(tree: ModuleTree, index: int) -> list[int]:
    """Index of the parameter that is the weight of module `index`, or of those that its weight is computed from."""
    ref = tree.modules[index]
    if ref.own_param_end == ref.param_end:  # nothing below it: the parametrizations of a weight would be
        own, cut = range(ref.param_start, ref.own_param_end), len(ref.path) + 1 if ref.path else 0
        return [number for number in own if tree.params[number].path[cut:] in _WEIGHT_NAMES]
    path, known = ref.path, tree.param_index
    return [known[full] for name in _WEIGHT_NAMES if (full := join_path(path, name)) in known]


def obstacle(
    tree: ModuleTree, index: int, indices: tuple[int, ...], ties: Mapping[int, tuple[int, ...]], method: PEFT
) -> tuple[str, str] | None:
    """What makes an adapter on module `index` dead, wrong or impossible, and what to do about it; None if nothing does.

    Args:
        indices: the module under all its paths.
        ties: identity of a tensor with several names -> indices of all of them.
    """
    ref = tree.modules[index]
    for reader in filter(None, [reader_of(tree, other) for other in indices]):
        return f"{reader} reads its weight directly, so that an adapter would do nothing", "exclude_modules"
    if not ref.path:
        return "the root of the model cannot be adapted in place of itself", "wrap it in a parent module"
    if "forward" in ref.module.__dict__:
        return (
            "its forward is replaced on the instance (as by accelerate's hooks), so that an adapter would do nothing",
            "add adapters before the hooks, or exclude it",
        )
    weights = weights_of(tree, index)
    if ties and (tied := _tied_names(tree, weights, indices, ties)):
        return f"its weight is also {tied}: merging the adapter would change both", "untie the weights, or exclude it"
    if any(0 in tree.params[weight].shape for weight in weights):
        return "its weight has no elements, so that there is nothing to adapt", "exclude it"
    if taken := _taken_names(ref.module, method):
        return f"it has {taken} of its own, where the adapter's would go", "exclude it, or rename them in the model"
    return None


def _tied_names(
    tree: ModuleTree, weights: Sequence[int], indices: tuple[int, ...], ties: Mapping[int, tuple[int, ...]]
) -> str:
    """Names that the weights have in other modules; a module that is itself shared has no other owner."""
    names = [name for weight in weights for name in ties.get(id(tree.params[weight].param), ())]
    return ", ".join(
        tree.params[name].path
        for name in names
        if not any(other <= tree.params[name].owner < tree.modules[other].end for other in indices)
    )


def _taken_names(module: nn.Module, method: PEFT) -> str:
    """Attributes that `module` has under names that injection needs; another adapter there is welcome."""
    names = [new.suffix.partition(".")[0] for new in method.planned(module)]
    taken = [name for name in names if _is_taken(module, name)]
    return ", ".join(dict.fromkeys(taken))


def _is_taken(module: nn.Module, name: str) -> bool:
    if name in module._modules:
        return not isinstance(module._modules[name], AdapterPart)
    # No hasattr on the instance: in a large model its misses cost more than the rest of the walk.
    if name in module._parameters or name in module._buffers or name in module.__dict__:
        return True
    return _class_has(type(module), name)


@cache
def _class_has(cls: type[nn.Module], name: str) -> bool:
    return hasattr(cls, name)
