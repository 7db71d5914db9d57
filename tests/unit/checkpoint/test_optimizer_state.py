from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from frostline.checkpoint.optimizer_state import read_optimizer, save_optimizer
from frostline.checkpoint.random_state import read_random_state, save_random_state
from frostline.errors import CheckpointError

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adamw_amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "tensor_lr": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.01), foreach=False),
}


def load_optimizer(*arguments: Any, **options: Any) -> None:
    read_optimizer(*arguments, **options)()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    loss = model(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimizer_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer, 1)
    step(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.5
    without = save_optimizer(optimizer, model, tmp_path)
    other = net()
    other.load_state_dict(model.state_dict())
    resumed = OPTIMIZERS[name](other.parameters())
    load_optimizer(resumed, other, tmp_path, without_state=without)
    for number in (3, 4):
        step(model, optimizer, number)
        step(other, resumed, number)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert without == (("0.bias", "0.weight", "2.bias", "2.weight") if name == "sgd" else ())
    assert resumed.param_groups[0].keys() == optimizer.param_groups[0].keys()


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_the_state_of_a_parameter_without_elements(name: str, tmp_path: Path) -> None:
    model = net()
    model.empty = nn.Parameter(torch.zeros(0, 3))  # type: ignore[assignment]
    optimizer = OPTIMIZERS[name](model.parameters())
    model.empty.sum().backward()  # type: ignore[operator]
    step(model, optimizer, 1)
    without = save_optimizer(optimizer, model, tmp_path)
    load_optimizer(OPTIMIZERS[name](model.parameters()), model, tmp_path, without_state=without)


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step(model, optimizer, 1)
    save_optimizer(optimizer, model, tmp_path)
    save_random_state(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_cases_16_to_18_only_parameters_known_to_have_no_state_may_lack_it(tmp_path: Path) -> None:
    model = net()
    unused = nn.Linear(2, 2)
    model.add_module("unused", unused)
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step(model, optimizer, 1)
    without = save_optimizer(optimizer, model, tmp_path)
    assert without == ("unused.bias", "unused.weight")
    load_optimizer(optimizer, model, tmp_path, without_state=without)
    assert optimizer.state[model[0].weight]
    assert unused.weight not in optimizer.state
    with pytest.raises(CheckpointError, match=r"no state for unused.weight; no state for unused.bias"):
        load_optimizer(optimizer, model, tmp_path)


def test_a_changed_set_of_parameters_is_refused_unless_allowed(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["adamw"](model[0].parameters())
    step(model, optimizer, 1)
    save_optimizer(optimizer, model, tmp_path)
    more = torch.optim.AdamW([model[0].weight, *model[2].parameters()], lr=0.7)
    with pytest.raises(
        CheckpointError, match=r"no state for 2.weight(.|\n)*state for 0.bias, which(.|\n)*--allow-plan"
    ):
        load_optimizer(more, model, tmp_path)
    assert not more.state
    load_optimizer(more, model, tmp_path, allow_plan_change=True)
    assert list(more.state) == [model[0].weight]
    assert more.param_groups[0]["lr"] == 0.7


def test_other_groups_another_class_and_another_shape_are_refused(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step(model, optimizer, 1)
    save_optimizer(optimizer, model, tmp_path)
    with pytest.raises(CheckpointError, match="state of AdamW, the run uses SGD"):
        load_optimizer(torch.optim.SGD(model.parameters(), lr=1), model, tmp_path)
    split = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    with pytest.raises(CheckpointError, match="1 groups, other than the optimizer's 2 groups"):
        load_optimizer(split, model, tmp_path)
    wider = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    with pytest.raises(CheckpointError, match=r"2.weight: exp_avg has shape \[2, 5\], the parameter \[4, 5\]"):
        load_optimizer(torch.optim.AdamW(wider.parameters()), wider, tmp_path)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("momentum", ("momentum_buffer",)),
        ("rmsprop", ("square_avg", "grad_avg")),
        ("adagrad", ("sum",)),
        ("adafactor", ("row_var", "col_var")),
        ("adamw_amsgrad", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    ],
)
def test_every_state_must_have_the_shape_of_its_parameter(name: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer, 1)
    weight = model[0].weight
    for key in keys:
        right = optimizer.state[weight][key]
        optimizer.state[weight][key] = torch.ones(3, 5)
        folder = tmp_path / key
        folder.mkdir()
        save_optimizer(optimizer, model, folder)
        optimizer.state[weight][key] = right
        before = dict(optimizer.state[weight])
        with pytest.raises(CheckpointError, match=rf"0\.weight: {key} has shape \[3, 5\], the parameter \[5, 3\]"):
            load_optimizer(optimizer, model, folder)
        assert optimizer.state[weight] == before


def test_a_parameter_that_is_not_in_the_model_and_state_that_needs_pickle(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(CheckpointError, match="1 parameters that are not in the model"):
        save_optimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1), model, tmp_path)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    optimizer.state[model[0].weight]["hook"] = object()
    with pytest.raises(CheckpointError, match=r"0.weight/hook is a object, which cannot be saved without pickle"):
        save_optimizer(optimizer, model, tmp_path)


def test_nested_state_and_scalars_of_every_kind_come_back(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    value: dict[str, Any] = {
        "flag": torch.ones(5, 3, dtype=torch.bool),
        "step": torch.tensor(3.0),
        "half": torch.ones(5, 3, dtype=torch.bfloat16),
        "list": [1, 0.1, None, "x", (torch.tensor([7]), float("inf"))],
        "inner": {"a": torch.zeros(0, 2)},
    }
    optimizer.state[model[0].weight] = dict(value)
    without = save_optimizer(optimizer, model, tmp_path)
    optimizer.state.clear()
    load_optimizer(optimizer, model, tmp_path, without_state=without)
    loaded = optimizer.state[model[0].weight]
    assert loaded["list"][:4] == value["list"][:4]
    assert loaded["list"][4][0].item() == 7
    assert loaded["list"][4][1] == float("inf")
    for key in ("flag", "step", "half"):
        assert torch.equal(loaded[key], value[key])
        assert loaded[key].dtype == value[key].dtype
    assert loaded["inner"]["a"].shape == (0, 2)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step(model, optimizer, 1)
    save_optimizer(optimizer, model, tmp_path)
    file = next((tmp_path / "optimizer").glob("*.safetensors"))
    whole = file.read_bytes()
    for content in (whole[:-100], b"\x80\x04K\x01."):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="the optimizer state cannot be read"):
            load_optimizer(optimizer, model, tmp_path)
    (tmp_path / "optimizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"optimizer.json is damaged"):
        load_optimizer(optimizer, model, tmp_path)
    (tmp_path / "optimizer.json").write_text('{"class": "AdamW"}')
    with pytest.raises(CheckpointError, match=r"optimizer.json is damaged: it has no 'groups'"):
        load_optimizer(optimizer, model, tmp_path)
    with pytest.raises(CheckpointError, match=r"random.json is missing"):
        read_random_state(tmp_path)


def test_an_interrupt_while_tensors_are_written_stays_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.distributed.checkpoint wraps whatever its writer raises in an exception of its own."""
    import torch.distributed.checkpoint as dcp

    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step(model, optimizer, 1)
    raised: list[type[BaseException]] = [KeyboardInterrupt, ValueError]

    def fail(*args: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(dcp.HuggingFaceStorageWriter, "write_data", fail)
    with pytest.raises(KeyboardInterrupt):
        save_optimizer(optimizer, model, tmp_path)
    raised.pop(0)
    (tmp_path / "optimizer").rmdir()
    with pytest.raises(dcp.api.CheckpointException):
        save_optimizer(optimizer, model, tmp_path)


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.gauss(0, 1)
    save_random_state(tmp_path)
    json.loads((tmp_path / "random.json").read_text())
    first = (random.random(), random.gauss(0, 1), float(numpy.random.rand()), torch.rand(3).tolist())
    random.seed(9)
    numpy.random.seed(9)
    torch.manual_seed(9)
    read_random_state(tmp_path)()
    assert (random.random(), random.gauss(0, 1), float(numpy.random.rand()), torch.rand(3).tolist()) == first


@pytest.mark.parametrize("generator", ["python", "torch", "numpy", "cuda"])
def test_a_state_that_is_none_is_known_before_any_generator_moves(generator: str, tmp_path: Path) -> None:
    save_random_state(tmp_path)
    states = json.loads((tmp_path / "random.json").read_text())
    states[generator] = ["x", "MTE=", 0]
    (tmp_path / "random.json").write_text(json.dumps(states))
    before = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist()  # type: ignore[index]
    with pytest.raises(CheckpointError, match=r"random.json is damaged"):
        read_random_state(tmp_path)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert numpy.random.get_state()[1].tolist() == before[2]  # type: ignore[index]
