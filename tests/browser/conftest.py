"""One browser for all tests of the page, and a line at the end of pytest's output where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, TrainabilityPlan, resolve

from .chromium import Page, find_chromium


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)


class Layer(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.experts = nn.ModuleList(Expert() for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Model(nn.Module):
    """Two towers, tied tables, experts, a head: everything that a picture has to tell."""

    def __init__(self, num_layers: int, num_experts: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(1000, 64)
        self.vision = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.layers = nn.ModuleList(Layer(num_experts) for _ in range(num_layers))
        self.lm_head = nn.Linear(64, 1000, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.classifier = nn.Linear(64, 5)


def make_plan(num_layers: int = 6, num_experts: int = 8) -> TrainabilityPlan:
    """A plan on the meta device with every kind of decision."""
    with torch.device("meta"):
        model = Model(num_layers, num_experts)
    plan = resolve(
        model,
        freeze_config={"unfreeze_modules": [{"param": "*.norm.bias"}, {"path": "vision.2"}]},
        peft=LoRA(rank=4, target_modules=["q_proj", "up_proj"]),
        new=["classifier.weight", "classifier.bias"],
    )
    decisions = []
    for decision in plan.decisions.values():
        if "experts" in decision.path and decision.kind == "adapter":
            decision = decision._replace(conditional=True)
        if decision.path == "vision.2.weight":
            decision = decision._replace(rows=tuple(range(10, 20)), note="a note on </script> & <b>markup</b>")
        decisions.append(decision)
    return TrainabilityPlan(
        decisions=tuple(decisions),
        modules=plan.modules,
        rules=plan.rules,
        adapters=plan.adapters,
        notes=(*plan.notes, "a note on </script><img src=x onerror=alert(1)>"),
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no Chromium is installed: the page of a plan was not looked at")
    page = Page.start(binary)
    yield page
    page.close()
