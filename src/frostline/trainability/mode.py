"""Training and evaluation mode: wholly frozen subtrees stay in evaluation mode, through every later `train()` call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from torch import nn

from frostline.tree import canonical_named_modules, unwrap

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def _stay_in_eval(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stands for `train` of a held module: dropout stays off and normalization statistics do not move."""
    del mode
    return nn.Module.train(module, False)


def hold_in_eval(
    model: nn.Module, roots: Iterable[str], *, modules: Sequence[tuple[str, nn.Module]] | None = None
) -> None:
    """Put the subtrees at `roots` into evaluation mode and keep them there; release every other one.

    Each module of a subtree is held by itself, because trainers call `train()` on single modules too. What is released
    takes the mode that the model is in. `modules` are its canonical named ones, where they are known.
    """
    wanted = set(roots)
    modules = list(canonical_named_modules(model)) if modules is None else modules
    # By identity, because a shared module may be inside a root under one of its paths only.
    kept_roots = {id(module): module for path, module in modules if path in wanted}
    kept = {id(module): module for root in kept_roots.values() for module in _subtree(root)}
    released = {
        id(module): module
        for _, module in modules
        if "train" in module.__dict__ and id(module) not in kept and _is_held(module)
    }
    for module in released.values():
        del module.__dict__["train"]
    for module in released.values():
        module.train(unwrap(model).training)
    for root in kept_roots.values():
        _put_into_eval(root)
    for module in kept.values():
        # On the instance: `nn.Module.train` recurses through `child.train(mode)`, so the parent's call ends here. A
        # partial and not a bound method, because a model that holds one of itself could not be pickled.
        module.__dict__["train"] = partial(_stay_in_eval, module)


def _subtree(root: nn.Module) -> Iterator[nn.Module]:
    """What `root.modules()` gives, each module once, without making the paths."""
    waiting, seen = [root], {id(root)}
    while waiting:
        module = waiting.pop()
        yield module
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def _put_into_eval(root: nn.Module) -> None:
    """What `root.train(False)` does, at a tenth of the price for the modules that have nothing of their own.

    There `nn.Module.__setattr__` sets the flag of each module, after it has looked for parameters under that name.
    """
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if "train" in module.__dict__ or not _is_plain(type(module)):
            module.train(False)  # its own way, which may well leave its children as they are
            continue
        module.__dict__["training"] = False
        if module._modules:
            waiting.extend([child for child in module._modules.values() if child is not None])


@cache
def _is_plain(cls: type[nn.Module]) -> bool:
    """Whether the class changes modes and sets attributes as `nn.Module` does."""
    return cls.train is nn.Module.train and cls.__setattr__ is nn.Module.__setattr__


def modules_out_of_eval(model: nn.Module) -> list[str]:
    """Paths of held modules that are in training mode all the same: somebody wrote `module.training = True`."""
    return [path for path, module in canonical_named_modules(model) if module.training and _is_held(module)]


def _is_held(module: nn.Module) -> bool:
    train = module.__dict__.get("train")
    return isinstance(train, partial) and train.func is _stay_in_eval


def set_training_mode(model: nn.Module, plan: TrainabilityPlan) -> None:
    """`model.train()` with the plan's `frozen_mode` honoured."""
    hold_in_eval(model, plan.frozen_roots)
    model.train()
