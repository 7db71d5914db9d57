"""Recomputing changes memory, never numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frostline.errors import ModelError
from frostline.training.gradient_checkpointing import enable_gradient_checkpointing
from frostline.tree import canonical_named_parameters


def gradients(model: nn.Module) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of one forward and backward, and the bytes that autograd kept for it."""
    kept: dict[int, int] = {}
    inside = {param.untyped_storage().data_ptr() for param in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in inside:
            kept[pointer] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(torch.arange(1, 17).repeat(8, 1)).square().sum()
    num_bytes = sum(kept.values())
    loss.backward()
    return {path: param.grad for path, param in canonical_named_parameters(model) if param.grad is not None}, num_bytes


def test_case_79_numbers_are_equal_with_and_without_checkpointing(toy: Any):
    plain, recomputed = toy.model(dropout=0.3), toy.model(dropout=0.3)
    plan = toy.plan(plain)
    toy.plan(recomputed)
    enable_gradient_checkpointing(recomputed)
    expected, more = gradients(plain)
    found, less = gradients(recomputed)
    assert found.keys() == expected.keys() == set(plan.trainable)
    assert all(found[path].equal(expected[path]) for path in expected)
    assert less < more / 2


def test_case_78_all_trained_parameters_get_gradients_behind_a_frozen_embedding(toy: Any):
    model = toy.model()
    plan = toy.plan(model, {"freeze_modules": ["embed"]})
    enable_gradient_checkpointing(model)
    found, _ = gradients(model)
    assert set(found) == set(plan.trainable)
    assert all(gradient.abs().sum() > 0 for gradient in found.values())


def test_paths_and_modules_stay_as_they_are(toy: Any):
    model = toy.model()
    before = [name for name, _ in model.named_modules()]
    enable_gradient_checkpointing(model)
    enable_gradient_checkpointing(model)
    assert [name for name, _ in model.named_modules()] == before
    assert model(torch.tensor([[1]])).equal(toy.model()(torch.tensor([[1]])))


def test_a_model_with_its_own_support_is_asked_for_the_non_reentrant_form():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.asked: Any = None

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
            self.asked = gradient_checkpointing_kwargs

    model = Own()
    enable_gradient_checkpointing(model)
    assert model.asked == {"use_reentrant": False}


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ModelError, match=r"finds no blocks in Linear(.|\n)*gradient_checkpointing: none"):
        enable_gradient_checkpointing(nn.Linear(2, 2))
