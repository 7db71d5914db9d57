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


@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_modules_and_no_faster(name: str) -> None:
    """Row 87: injecting adapters is linear in the number of modules; so is everything else that a plan needs."""
    work = WORK[name]
    work(build(2))  # imports and caches
    few, many = (count_calls(partial(work, build(count))) for count in (40, 160))
    assert many / few < 4.2
    assert many / (160 * 5) < 600
