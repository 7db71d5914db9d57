"""The loop with adapters: what trains, what is saved, and exact resume."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn

from frostline import prepare
from frostline.adapters import LoRA
from frostline.checkpoint import RunFolder
from frostline.errors import TrainingError
from frostline.training import read_metrics
from frostline.tree import canonical_named_parameters


def adapted(toy: Any, **arguments: Any) -> tuple[nn.Module, Any]:
    """The toy with LoRA on its blocks and a head that trains in full, as a fresh classifier does."""
    method = LoRA(rank=2, dropout=0.2, target_modules=["linear"])
    model = toy.model(dropout=0.1, **arguments)
    return prepare(model, peft=method, freeze_config={"unfreeze_modules": ["head"]})


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {path: param.detach().clone() for path, param in canonical_named_parameters(model)}


def losses(path: Any) -> list[float]:
    return [record["loss"] for record in read_metrics(path / "metrics.jsonl") if "loss" in record]


def test_case_22_only_adapters_and_the_thawed_head_change(toy: Any):
    model, plan = adapted(toy)
    before = bits(model)
    outcome = toy.train(model=model, plan=plan)
    changed = {path for path, value in bits(model).items() if not value.equal(before[path])}
    assert changed == set(plan.trainable)
    assert len(changed) == 3 * 2 + 2
    assert outcome.result.proof == f"frozen part: {len(plan.frozen)} tensors bit-identical to what was loaded"


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_1x8_2x4_and_8x1_give_the_same_adapters(toy: Any, micro: int):
    results: list[dict[str, torch.Tensor]] = []
    for size in (8, micro):
        method = LoRA(rank=2, target_modules=["linear"])
        model, plan = prepare(toy.model(dtype=torch.float64), peft=method)
        toy.train(model=model, plan=plan, training={"micro_batch_size": size})
        results.append(bits(model))
    for path, value in results[0].items():
        torch.testing.assert_close(results[1][path], value, rtol=0, atol=1e-12)


def test_cases_126_and_128_a_resumed_adapter_run_is_bit_identical(toy: Any):
    settings: dict[str, Any] = {"training": {"epochs": 2}, "checkpoint": {"every": 1}, "evaluation": {"every": 2}}
    model, plan = adapted(toy)
    whole = toy.train(model=model, plan=plan, name="whole", **settings)
    expected = bits(model)
    for checkpoint in RunFolder.read(whole.path).checkpoints():
        again = toy.root / "again"
        shutil.copytree(whole.path, again, symlinks=True)
        model, plan = adapted(toy)
        resume_from = again / "checkpoints" / checkpoint.name
        toy.train(model=model, plan=plan, name="again", mode="resume", resume_from=resume_from, **settings)
        found = bits(model)
        assert all(found[path].equal(value) for path, value in expected.items())
        assert losses(again) == losses(whole.path)
        newest = [RunFolder.read(path).latest() for path in (again, whole.path)]
        files = [path / "adapter" / "adapter_model.safetensors" for path in newest if path is not None]
        assert files[0].read_bytes() == files[1].read_bytes()
        shutil.rmtree(again)


def test_case_78_adapters_learn_under_gradient_checkpointing_with_a_frozen_embedding(toy: Any):
    model, plan = adapted(toy)
    plain = toy.train(model=model, plan=plan)
    other, other_plan = adapted(toy)
    recomputed = toy.train(model=other, plan=other_plan, training={"gradient_checkpointing": "all"})
    assert losses(recomputed.path) == losses(plain.path)
    assert all(value.equal(bits(model)[path]) for path, value in bits(other).items())


def test_an_adapter_that_evaluation_bypasses_stops_the_run(toy: Any):
    class Bypassing(type(toy.task())):
        def evaluate(self, model: nn.Module, examples: Any, **options: Any) -> dict[str, Any]:
            return {"loss": float(model.embed.weight.sum())}  # type: ignore[union-attr]

    model, plan = adapted(toy)
    with pytest.raises(TrainingError, match=r"adapters of layers.0.linear(.|\n)*did not run in evaluation"):
        toy.train(model=model, plan=plan, task=Bypassing())


def test_prove_off_costs_and_says_nothing(toy: Any):
    model, plan = adapted(toy)
    outcome = toy.train(model=model, plan=plan, training={"prove": False})
    assert outcome.result.proof == ""
    reference, reference_plan = adapted(toy)
    toy.train(model=reference, plan=reference_plan)
    assert all(value.equal(bits(model)[path]) for path, value in bits(reference).items())
