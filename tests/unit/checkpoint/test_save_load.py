"""Whole checkpoints: exact resume, and every way in which a checkpoint can be wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, load_checkpoint, save_checkpoint
from frostline.checkpoint.manifest import describe_files
from frostline.errors import CheckpointError

BASE = BaseIdentity("org/tiny", None, "sampled:1", "float32")
LORA = [{"glob": "*.proj"}]
KINDS: dict[str, dict[str, Any]] = {
    "adapter": {"lora": LORA, "freeze": {"unfreeze_modules": ["head"]}},
    "any adapter name": {"lora": LORA, "name": "x"},
    "trained part": {"freeze": {"freeze_modules": ["embed", "out"]}},
}


class Session:
    """Model, plan, optimizer as a run has them."""

    def __init__(self, model: nn.Module, plan: Any, **options: Any) -> None:
        self.model, self.plan = model, plan
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.01, **options)

    def save(self, run: RunFolder, step: int, **options: Any) -> Path:
        return save_checkpoint(
            run,
            model=self.model,
            plan=self.plan,
            optimizer=self.optimizer,
            scheduler_state={"last": step},
            progress={"step": step, "epoch": step / 10, "best": 0.1 + 0.2},
            base=BASE,
            **options,
        )

    def load(self, path: Path, **options: Any) -> Any:
        arguments = {"optimizer": self.optimizer, "base": BASE, **options}
        return load_checkpoint(path, model=self.model, plan=self.plan, **arguments)


@pytest.fixture
def session(prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]) -> Callable[..., Session]:
    def make(**options: Any) -> Session:
        torch.manual_seed(0)
        return Session(*prepared(tiny_net(), **(options or KINDS["adapter"])))

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_case_126_to_128_resume_equals_the_uninterrupted_run(
    kind: str, tmp_path: Path, session: Callable[..., Session], train: Callable[..., list[float]]
) -> None:
    whole = session(**KINDS[kind])
    with RunFolder.open(tmp_path) as run:
        train(whole.model.train(), whole.optimizer, 5)
        path = whole.save(run, 5)
        expected = train(whole.model, whole.optimizer, 5, start=5)
    resumed = session(**KINDS[kind])
    random.seed(1)
    state = resumed.load(path)
    assert (state.step, state.scheduler_state) == (5, {"last": 5})
    assert state.progress == {"step": 5, "epoch": 0.5, "best": 0.1 + 0.2}
    assert train(resumed.model.train(), resumed.optimizer, 5, start=5) == expected
    for mine, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_lies_in_a_checkpoint(tmp_path: Path, session: Callable[..., Session], train: Callable[..., Any]) -> None:
    it = session()
    train(it.model, it.optimizer, 1)
    with RunFolder.open(tmp_path) as run:

        def tokenizer(folder: Path) -> None:
            (folder / "tokenizer.json").write_text("{}")

        path = it.save(run, 1, task_type="SEQ_CLS", extra_files=tokenizer, is_best=True)
        it.save(run, 2)
        assert run.latest() == run.checkpoint_dir(2)
        assert run.best() == path
    files = {item.relative_to(path).as_posix() for item in path.rglob("*") if item.is_file()}
    assert files == {
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "adapter/frostline.json",
        "adapter/tokenizer.json",
        "manifest.json",
        "plan.json",
        "state/optimizer.json",
        "state/optimizer/model-00001-of-00001.safetensors",
        "state/optimizer/model.safetensors.index.json",
        "state/progress.json",
        "state/random.json",
    }
    manifest = Manifest.read(path)
    assert set(manifest.files) == files - {"manifest.json"}
    assert (manifest.adapter, manifest.plan_digest, manifest.num_threads) == (
        "default",
        it.plan.digest,
        torch.get_num_threads(),
    )
    assert manifest.method is not None
    assert manifest.method["rank"] == 2
    assert (tmp_path / "adapter").resolve() == path / "adapter"
    assert os.readlink(tmp_path / "checkpoints" / "latest") == "step-000002"


def test_case_107_nothing_of_the_frozen_base_is_written(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session(lora=LORA)
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 0)
    needed = sum(4 * parameter.numel() for parameter in it.model.parameters() if parameter.requires_grad)
    header = 8 + int.from_bytes((path / "adapter" / "adapter_model.safetensors").read_bytes()[:8], "little")
    assert (path / "adapter" / "adapter_model.safetensors").stat().st_size - header == needed


def test_a_step_that_was_saved_before_is_replaced(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session()
    with RunFolder.open(tmp_path) as run:
        it.save(run, 3)
        path = it.save(run, 3, is_best=True)
        assert run.checkpoints() == [path]
        assert Manifest.read(path).is_best
        assert sorted(item.name for item in run.checkpoint_root.iterdir()) == ["best", "latest", "step-000003"]


def test_evaluation_needs_no_state_and_moves_no_generator(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session()
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 1)
    (path / "state" / "random.json").write_text("edited")
    other = session()
    before = torch.get_rng_state()
    other.load(path, optimizer=None)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(CheckpointError, match=r"state/random.json has \d+ bytes"):
        session().load(path)


@pytest.mark.parametrize(
    "name",
    ["adapter/adapter_model.safetensors", "state/optimizer/model-00001-of-00001.safetensors", "state/progress.json"],
)
@pytest.mark.parametrize("how", ["truncated", "edited", "pickle", "gone"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(
    name: str, how: str, tmp_path: Path, session: Callable[..., Session], train: Callable[..., Any]
) -> None:
    it = session()
    train(it.model, it.optimizer, 1)
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 1)
    file = path / name
    content = bytearray(file.read_bytes())
    if how == "truncated":
        file.write_bytes(content[:-1])
    elif how == "edited":
        content[-2] ^= 1
        file.write_bytes(content)
    elif how == "pickle":
        torch.save({"a": torch.ones(3)}, file)
    else:
        file.unlink()
    other = session()
    before = {key: value.clone() for key, value in other.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"the checkpoint is damaged: {name}"):
        other.load(path)
    assert all(torch.equal(value, before[key]) for key, value in other.model.state_dict().items())


def test_another_base_and_another_plan_are_refused(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session()
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 1)
    with pytest.raises(CheckpointError, match="belongs to another base"):
        it.load(path, base=BaseIdentity("org/other", None, "sampled:2"))
    other = session(lora=LORA, freeze={"unfreeze_modules": [{"param": "head.bias"}, {"type": "BatchNorm1d"}]})
    with pytest.raises(
        CheckpointError,
        match=r"another plan(.|\n)*not now: head.weight(.|\n)*not in the checkpoint: blocks.0.norm(.|\n)*--allow-plan",
    ):
        other.load(path)
    state = other.load(path, allow_plan_change=True)
    assert any("head.weight" in change for change in state.plan_changes)
    assert torch.equal(other.model.get_parameter("head.weight"), it.model.get_parameter("head.weight"))


def test_a_shared_adapted_module_is_noted_as_wrong_in_peft(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    model = nn.Sequential()
    model.a = nn.Linear(4, 4)
    model.b = model.a
    model.c = nn.Linear(4, 4)
    it = Session(*prepared(model, lora=[{"path": "a"}, {"path": "c"}]))
    with RunFolder.open(tmp_path) as run:
        notes = Manifest.read(it.save(run, 1)).notes
    assert any(note.startswith("peft computes otherwise: a is one module under the names a, b") for note in notes)


def test_an_adapter_of_another_scaling_is_refused(tmp_path: Path, session: Callable[..., Session]) -> None:
    with RunFolder.open(tmp_path) as run:
        path = session().save(run, 1)
    manifest = Manifest.read(path)
    assert manifest.method is not None
    replace(manifest, method={**manifest.method, "alpha": 99.0}).write(path)
    with pytest.raises(CheckpointError, match=r"computes with other settings: alpha: 99.0 in the checkpoint"):
        session().load(path)


@pytest.mark.parametrize("alpha", [None, 4, 4.0])
def test_an_alpha_left_out_is_equal_to_the_number_that_it_stands_for(
    alpha: float | None, tmp_path: Path, session: Callable[..., Session]
) -> None:
    with RunFolder.open(tmp_path) as run:
        path = session().save(run, 1)
    session(**KINDS["adapter"], alpha=alpha).load(path)
    with pytest.raises(CheckpointError, match=r"alpha: 4 in the checkpoint, 5 now"):
        session(**KINDS["adapter"], alpha=5).load(path)


def test_a_method_that_cannot_be_read(tmp_path: Path, session: Callable[..., Session]) -> None:
    with RunFolder.open(tmp_path) as run:
        path = session().save(run, 1)
    replace(Manifest.read(path), method={"method": "of tomorrow"}).write(path)
    with pytest.raises(CheckpointError, match=r"the method of the checkpoint cannot be read: .*of tomorrow"):
        session().load(path)


def rewrite(path: Path, name: str, content: dict[str, Any]) -> None:
    """As a file that was written like that: its hash is right."""
    (path / name).write_text(json.dumps(content))
    replace(Manifest.read(path), files=describe_files(path)).write(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["optimizer", "random", "progress", "beside"])
def test_nothing_is_changed_unless_all_fits(
    fault: str, kind: str, tmp_path: Path, session: Callable[..., Session], train: Callable[..., Any]
) -> None:
    it = session(**KINDS[kind])
    train(it.model.train(), it.optimizer, 2)
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 2)
    if fault == "optimizer":
        record = json.loads((path / "state/optimizer.json").read_text())
        first = next(iter(record["state"].values()))
        first["exp_avg"], first["step"] = first["step"], first["exp_avg"]
        record["state"].popitem()
        rewrite(path, "state/optimizer.json", record)
    elif fault == "random":
        rewrite(path, "state/random.json", {})
    elif fault == "progress":
        rewrite(path, "state/progress.json", {"progress": {"step": 2}})
    else:
        tensors = {"unknown": torch.ones(2)}
        (path / "trained").mkdir(exist_ok=True)
        save_file(tensors, path / "trained/model.safetensors")
        base = BASE.to_dict()
        rewrite(path, "trained/trained.json", {"base": base, "num_tensors": 1})
    other = session(**KINDS[kind])
    train(other.model.train(), other.optimizer, 1)
    tensors = {name: value.clone() for name, value in other.model.state_dict().items()}
    moments = {key: value["exp_avg"].clone() for key, value in other.optimizer.state.items()}
    generator = torch.get_rng_state()
    with pytest.raises(CheckpointError):
        other.load(path)
    assert all(torch.equal(value, tensors[name]) for name, value in other.model.state_dict().items())
    assert all(torch.equal(other.optimizer.state[key]["exp_avg"], value) for key, value in moments.items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_checkpoint_with_an_adapter_needs_a_model_with_one(tmp_path: Path, session: Callable[..., Session]) -> None:
    with RunFolder.open(tmp_path) as run:
        path = session().save(run, 1)
    with pytest.raises(CheckpointError, match="holds an adapter, the model has none"):
        session(**KINDS["trained part"]).load(path, allow_plan_change=True)


def test_what_peft_cannot_hold_goes_beside_it(
    tmp_path: Path, prepared: Callable[..., Any], train: Callable[..., Any]
) -> None:
    def make() -> Session:
        model = nn.ModuleDict({"lora_gate": nn.Linear(2, 2), "fc": nn.Linear(2, 2)})
        return Session(*prepared(model, lora=["fc"], freeze={"unfreeze_modules": [{"param": "*lora_gate.bias"}]}))

    it = make()
    with RunFolder.open(tmp_path) as run:
        path = it.save(run, 1)
    assert (path / "trained").is_dir()
    assert "in trained/, not in adapter/: lora_gate.bias" in Manifest.read(path).notes[0]
    other = make()
    with torch.no_grad():
        other.model.get_parameter("lora_gate.bias").zero_()
    other.load(path)
    assert torch.equal(other.model.get_parameter("lora_gate.bias"), it.model.get_parameter("lora_gate.bias"))


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """As a full disk: the operating system refuses to write more than `num_bytes` into one file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("num_bytes", [100, 700, 1500])
def test_a_full_disk_keeps_the_last_checkpoint_and_leaves_nothing(
    num_bytes: int, tmp_path: Path, session: Callable[..., Session], train: Callable[..., Any]
) -> None:
    it = session()
    train(it.model, it.optimizer, 1)
    with RunFolder.open(tmp_path) as run:
        good = it.save(run, 1)
        with file_size_limit(num_bytes), pytest.raises(CheckpointError, match="the disk is full"):
            it.save(run, 2)
        assert run.checkpoints() == [good]
        assert sorted(item.name for item in run.checkpoint_root.iterdir()) == ["latest", "step-000001"]
    session().load(good)


def test_a_disk_that_fills_during_fsync(
    tmp_path: Path, session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = session()
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with RunFolder.open(tmp_path) as run:
        good = it.save(run, 1)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="the disk is full"):
            it.save(run, 2)
        assert run.checkpoints() == [good]


def test_nan_is_never_saved(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session()
    with RunFolder.open(tmp_path) as run:
        good = it.save(run, 1)
        with torch.no_grad():
            it.model.get_parameter("head.bias")[0] = float("nan")
        with pytest.raises(CheckpointError, match=r"head.bias holds values that are not finite"):
            it.save(run, 2)
        assert run.latest() == good


def test_a_run_opened_for_reading_is_not_written(tmp_path: Path, session: Callable[..., Session]) -> None:
    it = session()
    with RunFolder.open(tmp_path) as run:
        it.save(run, 1)
    with pytest.raises(CheckpointError, match="open for reading only"):
        it.save(RunFolder.read(tmp_path), 2)


WRITER = """
import sys, torch
from torch import nn
from frostline import LoRA, prepare
from frostline.checkpoint import BaseIdentity, RunFolder, save_checkpoint

model = nn.ModuleDict({"proj": nn.Linear(8, 8), "head": nn.Linear(8, 2)})
model, plan = prepare(model, peft=LoRA(rank=2, target_modules=["proj"]))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=0.01)
run = RunFolder.open(sys.argv[1], "resume")
step = int((run.latest() or "step-0").name[5:]) if run.latest() else 0
while True:
    step += 1
    with torch.no_grad():
        for parameter in trained:
            parameter.fill_(step)
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad():
        for parameter in trained:
            parameter.fill_(step)
    save_checkpoint(run, model=model, plan=plan, optimizer=optimizer, scheduler_state={}, progress={"step": step},
                    base=BaseIdentity(), is_best=step % 3 == 0, keep=2)
    print(step, flush=True)
"""


def kill_and_check(folder: Path, num_kills: int, seed: int) -> None:
    """Kill a process that only saves, at random moments, and load the newest complete checkpoint each time."""
    from frostline.sharing import load_adapter

    moments = random.Random(seed)
    announced = 0
    for _ in range(num_kills):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        try:
            announced = int(writer.stdout.readline())
            writer.wait(moments.uniform(0.0, 0.15))
        except subprocess.TimeoutExpired:
            pass  # it saves until it is killed
        finally:
            writer.kill()
        rest = writer.communicate()[0].split()
        assert writer.returncode == -signal.SIGKILL
        announced = int(rest[-1]) if rest else announced
        with RunFolder.open(folder, "resume") as run:
            latest = run.latest()
            assert latest is not None
            step = int(latest.name[5:])
            assert step in (announced, announced + 1)
            best = run.best()
            assert best is None or int(best.name[5:]) == step - step % 3
            for path in run.checkpoints():
                Manifest.read(path).verify_files(path)
        model, _ = load_adapter(nn.ModuleDict({"proj": nn.Linear(8, 8), "head": nn.Linear(8, 2)}), latest / "adapter")
        assert float(model.get_parameter("proj.lora_A.default.weight")[0, 0].detach()) == step


def test_a_kill_inside_a_save_leaves_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    kill_and_check(tmp_path, num_kills=2, seed=0)


@pytest.mark.campaign
def test_many_kills_inside_saves(tmp_path: Path) -> None:
    kill_and_check(tmp_path, num_kills=20, seed=1)


def test_the_package_knows_no_pickle(repository: Path) -> None:
    sources = list((repository / "src" / "frostline").rglob("*.py"))
    assert len(sources) > 30
    for source in sources:
        text = source.read_text(encoding="utf-8")
        for word in ("torch.save(", "torch.load(", "import pickle", "from pickle", "weights_only"):
            assert word not in text, f"{word} in {source}"
