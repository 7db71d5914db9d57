"""Training and evaluation mode: wholly frozen subtrees stay in evaluation mode, through every later `train()` call."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from frostline.tree import canonical_named_modules

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def _stay_in_eval(module: nn.Module, mode: bool = True) -> nn.Module:
    """Replaces `train` of a wholly frozen subtree: dropout stays off and normalization statistics do not move."""
    del mode
    return nn.Module.train(module, False)


def hold_in_eval(model: nn.Module, roots: Iterable[str]) -> None:
    """Put the subtrees at `roots` into evaluation mode and keep them there; release every other one."""
    wanted = set(roots)
    for path, module in canonical_named_modules(model):
        held = "train" in module.__dict__
        if path in wanted and not held:
            # On the instance: `nn.Module.train` recurses through `child.train(mode)`, so the parent's call ends here.
            module.__dict__["train"] = types.MethodType(_stay_in_eval, module)
            module.train()
        elif path not in wanted and held and getattr(module.__dict__["train"], "__func__", None) is _stay_in_eval:
            del module.__dict__["train"]


def set_training_mode(model: nn.Module, plan: TrainabilityPlan) -> None:
    """`model.train()` with the plan's `frozen_mode` honoured."""
    hold_in_eval(model, plan.frozen_roots if plan.frozen_mode == "eval" else ())
    model.train()
