from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from frostline.checkpoint import BaseIdentity, save_trained
from frostline.checkpoint.tensor_file import put_tensors, write_tensors
from frostline.checkpoint.trained_part import match_trained, read_trained
from frostline.errors import CheckpointError

FREEZE = {"freeze_modules": ["*"], "unfreeze_modules": ["head", {"path": "blocks.1"}]}


def load_trained(model: nn.Module, directory: Path, **options: Any) -> tuple[str, ...]:
    tensors = match_trained(model, read_trained(directory), **options)
    put_tensors(model, tensors)
    return tuple(tensors)


def saved(prepared: Callable[..., Any], build: Callable[..., nn.Module], directory: Path) -> tuple[nn.Module, Any]:
    model, plan = prepared(build(), freeze=FREEZE)
    save_trained(model, plan, directory, BaseIdentity("org/a", fingerprint="sampled:1"))
    return model, plan


def test_only_what_trained_is_kept_with_its_statistics(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    model, plan = saved(prepared, tiny_net, tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    statistics = {f"blocks.1.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert names == set(plan.trainable) | statistics
    other = tiny_net()
    assert set(load_trained(other, tmp_path)) == names
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_wrong_set_is_named_unless_allowed(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    saved(prepared, tiny_net, tmp_path)
    other, plan = prepared(tiny_net(), freeze={"freeze_modules": ["*"], "unfreeze_modules": ["head", "embed", "out"]})
    with pytest.raises(CheckpointError, match=r"missing embed.weight, unexpected blocks.1.norm.bias"):
        load_trained(other, tmp_path, plan=plan)
    load_trained(other, tmp_path, plan=plan, allow_plan_change=True)


def test_another_model_and_damage_are_refused(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    saved(prepared, tiny_net, tmp_path)
    assert read_trained(tmp_path).base == BaseIdentity("org/a", fingerprint="sampled:1")
    with pytest.raises(CheckpointError, match="the model has no blocks"):
        load_trained(nn.Linear(2, 2), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("head.bias")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds 8 tensors, trained.json says 9"):
        load_trained(tiny_net(), tmp_path)
    for record in ({}, [], {"base": None, "num_tensors": 8}, {"base": {"name_or_path": 3}, "num_tensors": 8}):
        (tmp_path / "trained.json").write_text(json.dumps(record))
        with pytest.raises(CheckpointError, match=r"trained.json is damaged"):
            load_trained(tiny_net(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"model.safetensors is a pickle, which is never loaded"):
        load_trained(tiny_net(), tmp_path)


def test_a_tied_tensor_is_kept_once(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    model, plan = prepared(tiny_net(), freeze={"freeze_modules": ["*"], "unfreeze_modules": ["embed", "out"]})
    assert save_trained(model, plan, tmp_path) == ("embed.weight",)
    other = tiny_net()
    load_trained(other, tmp_path)
    assert torch.equal(other.get_parameter("out.weight"), model.get_parameter("embed.weight"))


def test_an_empty_trained_part_says_what_to_do(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    model, plan = prepared(tiny_net(), freeze=FREEZE)
    with pytest.raises(CheckpointError, match=r"nothing to save(.|\n)*possible:(.|\n)*do: .*freeze_config"):
        save_trained(model, plan, tmp_path, only=())


def test_complex_numbers_are_kept_and_what_the_file_cannot_hold_is_named(tmp_path: Path) -> None:
    values = {"a": torch.randn(2, dtype=torch.complex64)}
    write_tensors(tmp_path / "a.safetensors", values)
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"], values["a"])
    for value, what in ((values["a"].to(torch.complex128), "a is complex128"), (values["a"] / 0, "a holds values")):
        with pytest.raises(CheckpointError, match=what):
            write_tensors(tmp_path / "b.safetensors", {"a": value})
    assert not (tmp_path / "b.safetensors").exists()
