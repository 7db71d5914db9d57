"""Training and evaluation mode: wholly frozen subtrees stay in evaluation mode, through every later `train()` call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from torch import nn

from frostline.tree import canonical_named_modules, model_class, unwrap

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


# What they compute does not depend on the mode, so only their children have to be held. Large models are made of them.
_MODELESS: frozenset[type[nn.Module]] = frozenset(
    {nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity,
     nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sequential, nn.ModuleList, nn.ModuleDict}
)  # fmt: skip


def _stay_in_eval(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stands for `train` of a held module: dropout stays off and normalization statistics do not move."""
    del mode
    return nn.Module.train(module, False)


def _hold_inside(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stands for `train` of a held `nn.TransformerEncoderLayer` among others that train.

    Its own flag means nothing but the fast path of inference. `nn.TransformerEncoder` looks at the first layer alone:
    were it in evaluation mode, padded batches would go as nested tensors into layers that cannot take them.
    """
    module.training = mode
    for child in module.children():
        child.train(False)
    return module


_HOLDING = (_stay_in_eval, _hold_inside)


def hold_in_eval(
    model: nn.Module, roots: Iterable[str], *, modules: Sequence[tuple[str, nn.Module]] | None = None
) -> None:
    """Put the subtrees at `roots` into evaluation mode and keep them there; release every other one.

    Each module of a subtree to which the mode means something is held by itself, because trainers call `train()` on
    single modules too. What is released takes the mode that the model is in. `modules` are its canonical named ones,
    where they are known.
    """
    modules = list(canonical_named_modules(model)) if modules is None else modules
    training = unwrap(model).training
    kept, top, outside = _split(modules, set(roots))
    among_trained = _layers_among_trained(outside, kept)
    released = [module for module in outside if "train" in module.__dict__ and id(module) not in kept]
    released = [module for module in released if _is_held(module)]
    for module in released:
        module.__dict__.pop("train", None)  # a shared module is there several times
    for module in released:
        module.train(training)
    for key, module in kept.items():
        modeless, plain = _traits(type(module))
        # On the instance: `nn.Module.train` recurses through `child.train(mode)`, so the parent's call ends here. A
        # partial and not a bound method, because a model that holds one of itself could not be pickled.
        if key in among_trained:
            module.__dict__["train"] = partial(_hold_inside, module)
        elif not modeless or key in top:
            module.__dict__["train"] = partial(_stay_in_eval, module)
        mode = training and key in among_trained
        if plain:
            module.__dict__["training"] = mode  # `nn.Module.__setattr__` would look for a parameter of that name
        else:
            module.training = mode


def _split(
    modules: Sequence[tuple[str, nn.Module]], roots: set[str]
) -> tuple[dict[int, nn.Module], set[int], list[nn.Module]]:
    """The modules of the subtrees at `roots` by identity, the identities of the roots, and what is under other paths.

    A shared module may be inside under one of its paths only, and is in both then.
    """
    kept: dict[int, nn.Module] = {}
    top: set[int] = set()
    outside: list[nn.Module] = []
    prefix: str | None = None
    for path, module in modules:  # parents before their children
        if prefix is None or not path.startswith(prefix):
            if path not in roots:
                prefix = None
                outside.append(module)
                continue
            prefix = f"{path}." if path else ""
            top.add(id(module))
        kept[id(module)] = module
    return kept, top, outside


def _layers_among_trained(modules: Iterable[nn.Module], kept: Mapping[int, nn.Module]) -> set[int]:
    """Identities of the held layers of each `nn.TransformerEncoder` in `modules` that is not held as a whole."""
    return {
        id(layer)
        for module in modules
        if isinstance(module, nn.TransformerEncoder) and id(module) not in kept
        for layer in map(unwrap, module.layers)
        if id(layer) in kept and model_class(layer) is nn.TransformerEncoderLayer
    }


@cache
def _traits(cls: type[nn.Module]) -> tuple[bool, bool]:
    """Whether the mode means nothing to such a module itself, and whether it sets attributes as torch does."""
    return cls in _MODELESS, cls.__setattr__ is nn.Module.__setattr__


def modules_out_of_eval(model: nn.Module) -> list[str]:
    """Paths of held modules that are in training mode all the same: somebody wrote `module.training = True`."""
    return [
        path
        for path, module in canonical_named_modules(model)
        if module.training and _is_held(module) and module.__dict__["train"].func is _stay_in_eval
    ]


def _is_held(module: nn.Module) -> bool:
    train = module.__dict__.get("train")
    return isinstance(train, partial) and train.func in _HOLDING


def set_training_mode(model: nn.Module, plan: TrainabilityPlan) -> None:
    """`model.train()` with the plan's `frozen_mode` honoured."""
    hold_in_eval(model, plan.frozen_roots)
    model.train()
