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
    for name in ("activation_checkpointing", "gradient_checkpointing"):  # transformers 5.24 renamed it
        enable = getattr(inner, f"{name}_enable", None)
        if callable(enable) and getattr(inner, "supports_gradient_checkpointing", True):
            enable(**{f"{name}_kwargs": {"use_reentrant": False}})
            _stop_backward_where_it_may(inner)
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


def _stop_backward_where_it_may(model: nn.Module) -> None:
    """transformers makes the embeddings' output require a gradient, which only the reentrant form needs.

    It would run backward, and recompute, through every frozen block below the first trained one.
    """
    disable: Any = getattr(model, "disable_input_require_grads", None)
    if callable(disable) and getattr(model, "_require_grads_hook", None) is not None:
        disable()


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
