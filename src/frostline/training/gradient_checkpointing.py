"""Recomputes blocks in the backward instead of keeping their activations, always in torch's non-reentrant form.

The reentrant form loses the gradients of adapters behind frozen embeddings; the non-reentrant one does not need the
first input to require a gradient. Knows nothing of adapters or plans; adds no module, so paths stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from frostline.config.origin import Origin
from frostline.errors import ModelError
from frostline.tree import ModuleTree, unwrap

_MARK = "_frostline_checkpointed"


def enable_gradient_checkpointing(model: nn.Module, origin: Origin | None = None) -> None:
    """Makes `model` recompute its blocks, in place: its own support where it has it, else each block of its lists.

    Raises:
        ModelError: the model neither supports it nor has a list of blocks.
    """
    inner = unwrap(model)
    enable = getattr(inner, "gradient_checkpointing_enable", None)
    if callable(enable) and getattr(inner, "supports_gradient_checkpointing", True):
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    tree = ModuleTree.from_model(model)
    if not tree.block_lists:
        raise ModelError(
            f"gradient checkpointing finds no blocks in {type(inner).__name__}",
            where=origin or Origin("training.gradient_checkpointing"),
            possible="a model with `gradient_checkpointing_enable`, or with an nn.ModuleList of equal blocks",
            fix="set `training.gradient_checkpointing: none`",
        )
    for blocks in tree.block_lists:
        for block in tree.children(blocks):
            _wrap_forward(tree.modules[block].module)


def _wrap_forward(block: nn.Module) -> None:
    if block.__dict__.get(_MARK):
        return
    forward: Callable[..., Any] = block.forward

    @wraps(forward)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = recomputed
    block.__dict__[_MARK] = True
