"""Rows of the catalogue of faults about freezing, unused parameters and resume, through real runs and library calls."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import frostline as fl
from frostline.errors import CheckpointError, TrainingError
from frostline.trainability import set_training_mode

Make = Callable[..., dict[str, Any]]


def moved(run: Any) -> set[str]:
    """Names of the base's tensors that the run changed, and of new ones."""
    before, after = run.planned.assembly.load_model().model.state_dict(), run.model().state_dict()
    return {name for name, tensor in after.items() if name not in before or not torch.equal(tensor, before[name])}


def test_case_15_weights_differ_exactly_where_the_setting_says(classify: Make, launch: Any) -> None:
    frozen = launch(classify(peft=None, freeze_config={"freeze_modules": ["bert"]}), name="frozen")
    thawed = launch(
        classify(peft=None, freeze_config={"freeze_modules": ["bert"], "unfreeze_modules": [{"layers": 1}]}),
        name="thawed",
    )
    head = {"classifier.weight", "classifier.bias"}
    assert moved(frozen) == head
    in_layer = {name for name in moved(thawed) if name.startswith("bert.encoder.layer.1.")}
    assert moved(thawed) == head | in_layer
    assert len(in_layer) == 16  # all of it


def test_case_30_a_resume_applies_the_plan_to_the_model_that_it_loads(
    classify: Make, launch: Any, resumes_bit_for_bit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frostline.recipes import runs

    config = classify(peft=None, freeze_config={"freeze_modules": ["bert.embeddings", {"layers": 0}]})
    run = launch(config)
    seen: list[set[str]] = []
    load = runs.load_prepared

    def watched(*args: Any) -> Any:
        held, plan, base = load(*args)
        seen.append({name for name, param in held.model.named_parameters() if param.requires_grad})
        return held, plan, base

    monkeypatch.setattr(runs, "load_prepared", watched)
    resumes_bit_for_bit(run, config, step=2)
    assert seen == [set(run.planned.plan.trainable)]


def adapter_of(run: Any, to: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    shutil.copytree(run.checkpoint / "adapter", to)
    file = to / "adapter_model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return to


def test_case_93_94_96_an_adapter_that_lands_nowhere_is_refused(classify: Make, launch: Any, tmp_path: Path) -> None:
    """Renamed prefix, modules that the model lacks, or half of the tensors: never the base without a word."""
    run = launch(classify(evaluation={"every": "never"}))
    prefix = "base_model.model."

    def renamed(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}

    faults = {
        "prefix": (renamed(prefix, "base_model."), "no name in peft's layout|does not fit|none of the"),
        "other": (renamed(f"{prefix}bert.", f"{prefix}foo."), "none of the 4 modules|does not fit"),
        "half": (lambda tensors: {n: t for n, t in tensors.items() if "lora_B" not in n}, "missing"),
    }
    for name, (change, message) in faults.items():
        folder = adapter_of(run, tmp_path / name, change)
        model = run.planned.assembly.load_model().model
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        with pytest.raises(CheckpointError, match=message):
            fl.load_adapter(model, folder)
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[key], before[key]) for key in before)


class WithUnused(nn.Module):
    """A linear that no forward calls, beside one that is; as shared key/value layers and idle towers are."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.used(x)))


@pytest.mark.parametrize("frozen", [False, True])
def test_case_16_17_18_parameters_without_state_resume_and_only_these(frozen: bool, tmp_path: Path) -> None:
    """Never-used parameters in the optimizer: the manifest lists them; any other missing state is an error."""
    from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, load_checkpoint, save_checkpoint

    def built() -> tuple[nn.Module, Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model, plan = fl.prepare(WithUnused(), freeze_config={"freeze_modules": ["unused"] if frozen else []})
        return model, plan, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    base = BaseIdentity("toy")
    whole, _, optimizer = built()
    steps(whole, optimizer, 0, 5)
    model, plan, optimizer = built()
    steps(model, optimizer, 0, 2)
    with RunFolder.open(tmp_path / "run") as run:
        path = save_checkpoint(
            run, model=model, plan=plan, optimizer=optimizer, scheduler_state={}, progress={"step": 2}, base=base
        )
    unused = set() if frozen else {"unused.weight", "unused.bias"}
    assert set(Manifest.read(path).without_state) == unused
    again, plan, optimizer = built()
    load_checkpoint(path, model=again, plan=plan, optimizer=optimizer, base=base)
    steps(again, optimizer, 2, 5)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_case_19_a_trained_part_without_gradient_is_named_in_the_first_step() -> None:
    model, plan = fl.prepare(WithUnused())
    prover = fl.Prover(model, plan)
    model(torch.ones(2, 4)).square().mean().backward()
    with pytest.raises(TrainingError, match=r"unused\.(weight|bias)"):
        prover.before_step(0, 1e-3)


def test_case_164_a_head_trained_in_full_is_not_kept_twice(classify: Make, launch: Any) -> None:
    run = launch(classify(evaluation={"every": "never"}))
    names = [name for name, _ in run.model().named_parameters() if "classifier" in name]
    assert names == ["classifier.weight", "classifier.bias"]


class ConvNet(nn.Module):
    """image [batch, 1, 8, 8] -> logits [batch, 3]; BatchNorm behind each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
        )
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.backbone(image).mean((2, 3))))


def conv_net() -> ConvNet:
    torch.manual_seed(0)
    return ConvNet()


def train_conv(model: nn.Module, plan: fl.TrainabilityPlan, num_steps: int = 5) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    set_training_mode(model, plan)
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        image = torch.randn(16, 1, 8, 8, generator=generator) * 3 + 1
        label = torch.randint(0, 3, (16,), generator=generator)
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.train()  # a loop of one's own may say so at any time


def test_case_31_statistics_of_frozen_batch_norms_stay() -> None:
    model, plan = fl.prepare(conv_net(), freeze_config={"freeze_modules": ["backbone"]})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_conv(model, plan)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    statistics = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert changed == {"norm.weight", "norm.bias", "head.weight", "head.bias"} | statistics


def test_case_31_frozen_mode_train_lets_them_move() -> None:
    model, plan = fl.prepare(conv_net(), freeze_config={"freeze_modules": ["backbone"], "frozen_mode": "train"})
    train_conv(model, plan)
    assert int(model.backbone[1].num_batches_tracked) == 5


def test_case_33_thawing_again_lets_statistics_move() -> None:
    model, plan = fl.prepare(conv_net(), freeze_config={"freeze_modules": ["backbone"]})
    train_conv(model, plan, 2)
    assert int(model.backbone[1].num_batches_tracked) == 0
    thawed = fl.resolve(model)
    thawed.apply(model)
    train_conv(model, thawed, 2)
    assert int(model.backbone[1].num_batches_tracked) == 2
    assert all(param.requires_grad for param in model.parameters())


@pytest.mark.parametrize("thaw", [[], ["norm"], ["norm", "backbone.1"]], ids=str)
def test_case_32_adapter_and_statistics_reload_with_equal_outputs(thaw: list[str], tmp_path: Path) -> None:
    """LoRA on the head; batch norms that train move their statistics, which then are in the file."""
    model, plan = fl.prepare(
        conv_net(), peft=fl.LoRA(rank=2, target_modules=["head"]), freeze_config={"unfreeze_modules": thaw}
    )
    train_conv(model, plan)
    image = torch.randn(4, 1, 8, 8)
    expected = model.eval()(image)
    fl.save_adapter(model, tmp_path / "adapter")
    file = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len([name for name in file if "running" in name]) == 2 * len(thaw)
    fresh, _ = fl.load_adapter(conv_net(), tmp_path / "adapter")
    assert torch.equal(fresh.eval()(image), expected)
    assert not torch.equal(conv_net().eval()(image), expected)
