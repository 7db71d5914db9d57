"""A tiny model, a tiny task with unequal lengths, and everything that a run needs around them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from frostline.checkpoint import BaseIdentity, RunFolder
from frostline.config.models import Config
from frostline.data import pad_batch
from frostline.trainability import TrainabilityPlan, parse_freeze_config, resolve_plan
from frostline.training import TrainResult, train
from frostline.tree import ModuleTree

VOCABULARY, WIDTH = 17, 8


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.linear(self.norm(x))))


class ToyModel(nn.Module):
    """input_ids [batch, sequence] -> logits [batch, sequence, VOCABULARY]."""

    def __init__(self, dropout: float = 0.0, num_blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(dropout) for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@dataclass
class ToyTask:
    """Predicts a label at every position.

    `poison_call` makes that call of the loss NaN, in `tamper_call` a frozen weight moves behind torch's back.
    """

    task_type: str = "CAUSAL_LM"
    unit: str = "tokens"
    metric_names: tuple[str, ...] = ("loss", "score")
    default_metric: tuple[str, str] = ("loss", "min")
    poison_call: int | None = None
    tamper_call: int | None = None
    num_calls: int = 0
    scores: list[float] = field(default_factory=list)

    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        return pad_batch(examples, 0)

    def num_targets(self, batch: dict[str, Tensor]) -> float:
        return float((batch["labels"] != -100).sum())

    def num_units(self, batch: dict[str, Tensor]) -> int:
        return int(batch["attention_mask"].sum())

    def loss_sum(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        self.num_calls += 1
        if self.num_calls - 1 == self.tamper_call:
            model.embed.weight.data[0, 0] += 1  # type: ignore[union-attr, operator]
        return loss * float("nan") if self.num_calls - 1 == self.poison_call else loss

    def evaluate(
        self, model: nn.Module, examples: Sequence[Any], *, batch_size: int, device: torch.device, autocast: Any
    ) -> dict[str, Any]:
        assert not model.training
        torch.rand(3)  # an evaluation that draws random numbers must not disturb the training
        total = torch.zeros((), dtype=torch.float64)
        count = 0.0
        for start in range(0, len(examples), batch_size):
            batch = self.collate(examples[start : start + batch_size])
            with autocast():
                logits = model(batch["input_ids"].to(device))
            total += nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
            count += self.num_targets(batch)
        metrics: dict[str, Any] = {"loss": float(total) / count, "report": "a table"}
        if self.scores:
            metrics["score"] = self.scores.pop(0)
        return metrics


def toy_examples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sequences of 2 to 9 tokens, of which some carry no label."""
    generator = torch.Generator().manual_seed(seed)
    examples: list[dict[str, Any]] = []
    for _ in range(count):
        length = int(torch.randint(2, 10, (), generator=generator))
        ids = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        masked = int(torch.randint(0, length, (), generator=generator))
        labels = [-100] * masked + [(3 * token) % VOCABULARY for token in ids[masked:]]
        examples.append({"input_ids": ids, "labels": labels})
    return examples


def toy_model(*, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> ToyModel:
    """The same weights on every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return ToyModel(dropout).to(dtype)


def toy_plan(model: nn.Module, freeze_config: dict[str, Any] | None = None) -> TrainabilityPlan:
    """Freezes the embedding unless told otherwise, and applies the plan."""
    rules = parse_freeze_config({"freeze_modules": ["embed"]} if freeze_config is None else freeze_config)
    plan = resolve_plan(ModuleTree.from_model(model), rules)
    plan.apply(model)
    return plan


def toy_config(**sections: Any) -> Config:
    """A valid config; a section given here replaces nothing but its own keys."""
    values: dict[str, Any] = {
        "recipe": "causal_lm",
        "model": {"name_or_path": "toy"},
        "data": {"train": "toy.jsonl"},
        "device": "cpu",
        "training": {"batch_size": 8, "epochs": 2},
        "optimizer": {"lr": 0.01},
        "evaluation": {"at_start": False},
        "checkpoint": {"every": "epoch", "keep": 100},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
        if name == "training" and "max_steps" in section:
            values[name].pop("epochs")
    return Config.model_validate(values)


@dataclass
class Outcome:
    result: TrainResult
    model: nn.Module
    output: str
    path: Path


class Toy:
    """What tests reach through the `toy` fixture."""

    base = BaseIdentity("toy", None, "0" * 64, "float32")
    task = ToyTask
    examples = staticmethod(toy_examples)
    model = staticmethod(toy_model)
    plan = staticmethod(toy_plan)
    config = staticmethod(toy_config)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.num_runs = 0

    def train(
        self,
        *,
        model: nn.Module | None = None,
        plan: TrainabilityPlan | None = None,
        task: ToyTask | None = None,
        name: str | None = None,
        mode: str = "new",
        resume_from: Path | None = None,
        allow_plan_change: bool = False,
        num_train: int = 21,
        num_validation: int = 5,
        terminal: bool = False,
        **sections: Any,
    ) -> Outcome:
        """One whole run in a run folder of its own (`name` to choose it)."""
        model = model or toy_model()
        plan = plan or toy_plan(model)
        self.num_runs += 1
        path = self.root / (name or f"run-{self.num_runs}")
        out = io.StringIO()
        with RunFolder.open(path, mode) as run:
            result = train(
                model=model,
                plan=plan,
                task=task or ToyTask(),
                train_examples=toy_examples(num_train),
                validation_examples=toy_examples(num_validation, seed=1) if num_validation else None,
                config=toy_config(**sections),
                run=run,
                base=self.base,
                resume_from=resume_from,
                allow_plan_change=allow_plan_change,
                console=Console(file=out, width=200, force_terminal=terminal),
            )
        return Outcome(result, model, out.getvalue(), path)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(autouse=True)
def undisturbed_torch() -> Iterator[None]:
    """Runs seed torch and choose deterministic kernels, process-wide; give both back."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
    torch.use_deterministic_algorithms(False)
