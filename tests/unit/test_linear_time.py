"""Work on a model grows with its modules, not faster: counted in calls, so that a busy machine changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import frostline
from frostline.trainability.bind import held_by
from frostline.tree import ModuleTree


def build(num_blocks: int) -> nn.Module:
    """Blocks of 4 linears on the meta device; 5 modules in each."""

    def block() -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(4, 4) for name in ("q_proj", "k_proj", "up", "down")})

    with torch.device("meta"):
        return nn.ModuleDict({"layers": nn.ModuleList(block() for _ in range(num_blocks)), "head": nn.Linear(4, 2)})


def count_calls(function: Callable[[], Any]) -> int:
    """Calls of Python and C functions while `function` runs."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        del frame, argument
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


FREEZE = {"freeze_modules": ["layers"], "unfreeze_modules": [{"glob": "*.up"}]}
LORA = {"method": "lora", "rank": 2}
WORK: dict[str, Callable[[nn.Module], Any]] = {
    "tree": ModuleTree.from_model,
    "resolve": lambda model: frostline.resolve(model, freeze_config=FREEZE),
    "resolve with adapters": lambda model: frostline.resolve(model, peft=LORA),
    "prepare": lambda model: frostline.prepare(model, freeze_config=FREEZE),
    "prepare with adapters": lambda model: frostline.prepare(model, peft=LORA),
    "verify": lambda model: frostline.prepare(model, peft=LORA)[1].verify(model),
    "render": lambda model: frostline.resolve(model, peft=LORA).render(),
}


def _replaced(model: nn.Module) -> frostline.TrainabilityPlan:
    """Every linear stands in a container now."""
    model, plan = frostline.prepare(model)
    for block in model.layers:  # type: ignore[union-attr]
        for name, child in block.named_children():
            block.add_module(name, nn.Sequential(child))
    return plan.bind(model)


def _renumbered(model: nn.Module) -> frostline.TrainabilityPlan:
    """A stage of a pipeline of which no path is that of the plan."""
    model, plan = frostline.prepare(model)
    model.layers = nn.ModuleDict({f"block{index}": block for index, block in enumerate(model.layers)})  # type: ignore[arg-type]
    stage = plan.bind(model, stage=True)
    held_by(stage.whole, ModuleTree.from_model(model))
    return stage


def _packed(model: nn.Module) -> frostline.TrainabilityPlan:
    """Frozen weights are packed in place, and another step follows."""
    model, plan = frostline.prepare(model, freeze_config={"freeze_modules": ["layers"]})
    for block in model.layers:  # type: ignore[union-attr]
        for child in block.children():
            child._parameters["weight"] = nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    return plan.bind(model, step="packing").bind(model)


WORK |= {"bind to replacements": _replaced, "bind a renumbered stage": _renumbered, "bind to what is packed": _packed}


@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_modules_and_no_faster(name: str) -> None:
    """Row 87: injecting adapters is linear in the number of modules; so is everything else that a plan needs."""
    work = WORK[name]
    work(build(2))  # imports and caches
    few, many = (count_calls(partial(work, build(count))) for count in (40, 160))
    assert many / few < 4.2
    assert many / (160 * 5) < (900 if name.startswith("bind") else 600)
