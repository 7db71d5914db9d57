from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from frostline.adapters import LoRA, adapters_of, inject, merge, unmerge
from frostline.checkpoint import BaseIdentity
from frostline.errors import AdapterError, CheckpointError, PlanMismatchError
from frostline.preparation import prepare
from frostline.sharing import identity_of, load_adapter, load_trained, save_adapter, save_trained
from frostline.trainability import plan_of

FILE = "adapter_model.safetensors"


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(nn.ModuleDict({"q": nn.Linear(6, 6), "norm": nn.BatchNorm1d(6)}) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch] -> [batch, 3]"""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer["norm"](x + layer["q"](x))  # type: ignore[index]
        return self.head(x)


TOKENS = torch.arange(8)


def scatter(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.requires_grad or ".lora_" in name:
                param += 0.3 * torch.randn(param.shape, generator=generator)


def trained(adapter: str = "default", model: nn.Module | None = None, **settings: Any) -> Any:
    method = LoRA(rank=2, target_modules=["q"], **settings.pop("method", {}))
    model, _ = prepare(model or Net(), peft=method, adapter=adapter, **settings)
    scatter(model)
    return model


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that a refused load must leave as it is."""
    return {
        "tensors": {name: value.clone() for name, value in model.state_dict().items()},
        "flags": {name: param.requires_grad for name, param in model.named_parameters()},
        "classes": [type(module) for module in model.modules()],
        "modes": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "adapters": dict(adapters_of(model)),
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    after = state_of(model)
    tensors, other = after.pop("tensors"), {key: value for key, value in before.items() if key != "tensors"}
    assert after == other
    assert tensors.keys() == before["tensors"].keys()
    assert all(torch.equal(value, before["tensors"][name]) for name, value in tensors.items())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_adapter(trained(new=["head.weight", "head.bias"]), tmp_path / "adapter")


class TestLoadAdapter:
    def test_a_bare_model_gets_all_and_nothing_trains(self, saved: Path) -> None:
        model, plan = load_adapter(Net(), saved)
        expected = trained(new=["head.weight", "head.bias"]).eval()
        assert torch.equal(model.eval()(TOKENS), expected(TOKENS))
        assert not any(param.requires_grad for param in model.parameters())
        assert plan is plan_of(model)
        assert set(plan.trainable) == set(plan_of(expected).trainable)

    def test_case_30_trainable_it_goes_on_as_planned_in_the_same_objects(self, saved: Path) -> None:
        bare = Net()
        weight = bare.layers[0]["q"].weight  # type: ignore[index]
        model, plan = load_adapter(bare, saved, trainable=True)
        assert model is bare
        assert model.layers[0]["q"].weight is weight  # type: ignore[index]
        assert {name for name, param in model.named_parameters() if param.requires_grad} == set(plan.trainable)
        plan.verify(model)

    def test_case_24_a_prepared_model_is_filled_and_flags_follow_the_argument(self, saved: Path) -> None:
        model = trained(new=["head.weight", "head.bias"])
        with torch.no_grad():
            for path in plan_of(model).trainable:
                model.get_parameter(path).zero_()
        _, plan = load_adapter(model, saved, trainable=True)
        plan.verify(model)
        assert torch.equal(model.eval()(TOKENS), load_adapter(Net(), saved)[0].eval()(TOKENS))
        load_adapter(model, saved)
        assert not any(param.requires_grad for param in model.parameters())

    @pytest.mark.parametrize("name", [None, "x", "default", "foobar"])
    def test_case_127_any_name_on_either_side(self, name: str | None, tmp_path: Path) -> None:
        model = trained("foo")
        save_adapter(model, tmp_path / "a")
        again, _ = load_adapter(Net(), tmp_path / "a", adapter=name)
        assert list(adapters_of(again)) == [name or "default"]
        assert torch.equal(again.eval()(TOKENS), model.eval()(TOKENS))
        load_adapter(model, tmp_path / "a")  # the only one, whatever it is called

    def test_a_name_that_the_model_does_not_have_is_no_other_adapter(self, saved: Path) -> None:
        model = trained("foo", new=["head.weight", "head.bias"])
        before = state_of(model)
        with pytest.raises(CheckpointError, match=r"no adapter 'bar'(.|\n)*foo"):
            load_adapter(model, saved, adapter="bar")
        assert_unchanged(model, before)

    @pytest.mark.parametrize("settings", [{"alpha": 3.0}, {"use_rslora": True}])
    def test_an_adapter_of_another_scaling_is_refused(self, settings: dict[str, Any], saved: Path) -> None:
        """Every tensor fits, and the output would still be another."""
        model = trained(new=["head.weight", "head.bias"], method=settings)
        before = state_of(model)
        with pytest.raises(AdapterError, match=r"in the file is scaled by 2, the one in the model by (.|\n)*alpha 4"):
            load_adapter(model, saved)
        assert_unchanged(model, before)

    @pytest.mark.parametrize("bare", [True, False])
    @pytest.mark.parametrize("fault", ["renamed", "missing", "surplus", "shape", "nan"])
    def test_cases_93_94_96_nothing_changes_when_the_file_does_not_fit(
        self, bare: bool, fault: str, saved: Path
    ) -> None:
        tensors = load_file(saved / FILE)
        first = next(key for key in tensors if "lora_B" in key)
        faults: dict[str, Callable[[], Any]] = {
            "renamed": lambda: tensors.update({first.replace("layers.0", "layers.7"): tensors.pop(first)}),
            "missing": lambda: tensors.pop(first),
            "surplus": lambda: tensors.update({"base_model.model.other.weight": torch.zeros(2)}),
            "shape": lambda: tensors.update({first: torch.zeros(5, 2)}),
            "nan": lambda: tensors.update({first: torch.full((6, 2), float("nan"))}),
        }
        faults[fault]()
        save_file(tensors, saved / FILE)
        model = Net().train() if bare else trained(new=["head.weight", "head.bias"])
        model.embed.weight.requires_grad_(False)
        before = state_of(model)
        with pytest.raises(CheckpointError):
            load_adapter(model, saved)
        assert_unchanged(model, before)

    def test_case_94_an_adapter_for_other_modules_says_which(self, saved: Path) -> None:
        model = nn.ModuleDict({"foo": nn.Linear(6, 6)})
        with pytest.raises(CheckpointError, match=r"none of the 2 modules(.|\n)*layers\.0\.q(.|\n)*the model has foo"):
            load_adapter(model, saved)

    def test_case_132_another_base_of_the_same_shapes(self, tmp_path: Path) -> None:
        here, other = BaseIdentity("here", fingerprint="a" * 64), BaseIdentity("there", fingerprint="b" * 64)
        save_adapter(trained(), tmp_path / "a", base=here)
        model = Net()
        before = state_of(model)
        with pytest.raises(CheckpointError, match=r"belongs to another base: there(.|\n)*here"):
            load_adapter(model, tmp_path / "a", base=other)
        assert_unchanged(model, before)
        load_adapter(model, tmp_path / "a", base=BaseIdentity("moved", fingerprint="a" * 64))

    def test_case_95_and_110_a_compiled_or_checkpointed_model_saves_and_loads_under_plain_names(
        self, tmp_path: Path
    ) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model = trained()
        save_adapter(model, tmp_path / "plain")
        wrapped = torch.compile(model, backend="eager")
        model.layers[1] = checkpoint_wrapper(model.layers[1])
        save_adapter(wrapped, tmp_path / "wrapped")  # type: ignore[arg-type]
        plain, other = (load_file(tmp_path / name / FILE) for name in ("plain", "wrapped"))
        assert plain.keys() == other.keys()
        assert all(torch.equal(plain[key], other[key]) for key in plain)
        target = Net()
        load_adapter(torch.compile(target, backend="eager"), tmp_path / "plain")  # type: ignore[type-var]
        assert torch.equal(target.eval()(TOKENS), model.eval()(TOKENS))

    def test_case_105_a_module_that_a_pattern_thawed_is_saved(self, tmp_path: Path) -> None:
        model = trained(freeze_config={"unfreeze_modules": [{"regex": "emb.*"}, {"param": "*.norm.bias"}]})
        save_adapter(model, tmp_path / "a")
        again, plan = load_adapter(Net(), tmp_path / "a")
        assert torch.equal(again.eval()(TOKENS), model.eval()(TOKENS))
        assert "embed.weight" in plan.trainable
        assert "layers.0.norm.bias" in plan.trainable
        assert "head.weight" not in plan.trainable

    def test_names_with_the_letters_of_wildcards(self, tmp_path: Path) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                for name in ("a[0]", "a0", "q"):
                    self.add_module(name, nn.Linear(2, 2))

        model = trained(model=Odd(), freeze_config={"unfreeze_modules": [{"path": "a[0]"}]})
        save_adapter(model, tmp_path / "a")
        _, plan = load_adapter(Odd(), tmp_path / "a")
        assert set(plan.trainable) == set(plan_of(model).trainable)

    def test_shared_modules(self, tmp_path: Path) -> None:
        def build() -> Net:
            net = Net()
            net.layers.append(net.layers[0])
            return net

        model = trained(model=build())
        save_adapter(model, tmp_path / "a")
        again, _ = load_adapter(build(), tmp_path / "a")
        assert torch.equal(again.eval()(TOKENS), model.eval()(TOKENS))
        assert sum("lora_A" in key for key in load_file(tmp_path / "a" / FILE)) == 2

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_factors_keep_the_dtype_of_the_file(self, dtype: torch.dtype, tmp_path: Path) -> None:
        name = str(dtype).removeprefix("torch.")
        save_adapter(trained(method={"dtype": name}), tmp_path / "a")
        model, _ = load_adapter(Net(), tmp_path / "a")
        assert model.layers[0]["q"].lora_A["default"].weight.dtype is dtype  # type: ignore[index]


class TestSaveAdapter:
    def test_case_99_two_adapters_with_nested_names(self, tmp_path: Path) -> None:
        model = trained("foo")
        inject(model, LoRA(rank=3, target_modules=["q"]), adapter="foobar")
        plan_of(model).bind(model, step="a second adapter")
        scatter(model)
        for name in ("foo", "foobar"):
            save_adapter(model, tmp_path / name, adapter=name)
            for key, value in load_file(tmp_path / name / FILE).items():
                assert "foo" not in key
                assert value.shape[0 if "lora_A" in key else 1] == adapters_of(model)[name].method.rank  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=r"has 2 adapters(.|\n)*foo, foobar"):
            save_adapter(model, tmp_path / "none")
        assert sorted(os.listdir(tmp_path)) == ["foo", "foobar"]

    def test_an_earlier_adapter_is_replaced(self, saved: Path) -> None:
        save_adapter(trained(), saved)
        assert not any("head" in key for key in load_file(saved / FILE))
        assert os.listdir(saved.parent) == ["adapter"]

    @pytest.mark.parametrize("kind", ["folder", "file"])
    def test_what_someone_else_put_there_stays(self, kind: str, tmp_path: Path) -> None:
        target = tmp_path / "a"
        if kind == "folder":
            target.mkdir()
        (target / "thesis.txt" if kind == "folder" else target).write_text("precious")
        with pytest.raises(CheckpointError, match="exists and holds something else"):
            save_adapter(trained(), target)
        assert (target / "thesis.txt" if kind == "folder" else target).read_text() == "precious"
        assert os.listdir(tmp_path) == ["a"]

    def test_the_current_folder_may_be_meant(self, tmp_path: Path) -> None:
        here = tmp_path / "here"
        here.mkdir()
        (here / "notes.txt").write_text("mine")
        os.chdir(here)
        with pytest.raises(CheckpointError, match="exists and holds something else"):
            save_adapter(trained(), ".")

    @pytest.mark.parametrize("where", [".", "..", "../adapter"])
    def test_the_current_folder_and_those_above_are_not_replaced(self, where: str, saved: Path) -> None:
        """A process whose current folder is gone can open nothing any more."""
        before = (saved / FILE).read_bytes()
        for file in saved.iterdir():
            shutil.copy(file, saved.parent)
        os.chdir(saved)
        with pytest.raises(CheckpointError, match=r"current folder(.|\n)*possible:(.|\n)*do:"):
            save_adapter(trained(), where)
        assert os.getcwd() == str(saved)
        assert (saved / FILE).read_bytes() == before

    def test_case_102_nothing_is_left_behind_by_a_failed_save(self, tmp_path: Path) -> None:
        model = trained()
        model.layers[0]["q"].lora_B["default"].weight.data[0] = float("inf")
        with pytest.raises(CheckpointError, match=r"layers\.0\.q\.lora_B"):
            save_adapter(model, tmp_path / "deep" / "a")
        assert not any(path.is_file() for path in tmp_path.rglob("*"))

    def test_a_model_without_a_plan_or_an_adapter(self, tmp_path: Path) -> None:
        with pytest.raises(PlanMismatchError, match="no plan"):
            save_adapter(Net(), tmp_path / "a")
        model, _ = prepare(Net())
        with pytest.raises(CheckpointError, match=r"0 adapters(.|\n)*save_trained"):
            save_adapter(model, tmp_path / "a")
        assert not os.listdir(tmp_path)

    def test_case_111_the_folder_stands_alone(self, saved: Path) -> None:
        assert sorted(os.listdir(saved)) == ["adapter_config.json", FILE, "frostline.json"]
        config = json.loads((saved / "adapter_config.json").read_text())
        assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4)

    def test_a_merged_model_saves_the_same_adapter(self, saved: Path, tmp_path: Path) -> None:
        model, _ = load_adapter(Net(), saved)
        merge(model, keep=True)
        save_adapter(model, tmp_path / "again")
        first, second = load_file(saved / FILE), load_file(tmp_path / "again" / FILE)
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items())


class TestTrainedPart:
    FREEZE = {"freeze_modules": ["*"], "unfreeze_modules": ["head", {"param": "*.norm.weight"}]}  # noqa: RUF012

    def test_round_trip_into_a_bare_and_a_prepared_model(self, tmp_path: Path) -> None:
        model, plan = prepare(Net(), freeze_config=self.FREEZE)
        scatter(model)
        save_trained(model, tmp_path / "t")
        bare = Net()
        flags = {name: param.requires_grad for name, param in bare.named_parameters()}
        assert load_trained(bare, tmp_path / "t") is bare
        assert {name: param.requires_grad for name, param in bare.named_parameters()} == flags
        prepared, _ = prepare(Net(), freeze_config=self.FREEZE)
        load_trained(prepared, tmp_path / "t")
        for other in (bare, prepared):
            assert torch.equal(other.eval()(TOKENS), model.eval()(TOKENS))
        assert plan.num_trainable < plan.num_total

    def test_a_parameter_without_elements_is_kept_as_the_plan_has_it(self, tmp_path: Path) -> None:
        def build() -> Any:
            model = Net()
            model.empty = nn.Parameter(torch.zeros(0, 3))
            return model

        freeze = {"freeze_modules": ["*"], "unfreeze_modules": ["head", {"param": "empty"}]}
        model, plan = prepare(build(), freeze_config=freeze)
        assert "empty" in plan.trainable
        save_trained(model, tmp_path / "t")
        assert load_trained(build(), tmp_path / "t").empty.shape == (0, 3)
        model.head.weight.data = torch.zeros(0)  # as a sharding library leaves it, which keeps the values elsewhere
        with pytest.raises(CheckpointError, match=r"head\.weight is empty \(shape \[0\]\)"):
            save_trained(model, tmp_path / "t")

    def test_extra_state_has_no_place_in_a_checkpoint(self, tmp_path: Path) -> None:
        class Scaled(nn.Linear):
            k: Any = 1.0

            def forward(self, input: Tensor) -> Tensor:
                return self.k * super().forward(input)

            def get_extra_state(self) -> Any:
                return self.k

            def set_extra_state(self, state: Any) -> None:
                self.k = state

        def build() -> Any:
            model = Net()
            model.head = Scaled(6, 3)
            return model

        model, _ = prepare(build(), freeze_config=self.FREEZE)
        with pytest.raises(CheckpointError, match=r"head \(Scaled\)(.|\n)*get_extra_state(.|\n)*possible:(.|\n)*do:"):
            save_trained(model, tmp_path / "t")
        adapted, _ = prepare(build(), peft=LoRA(rank=2, target_modules=["head"]))
        with pytest.raises(CheckpointError, match=r"head \(.*Scaled\)"):
            save_adapter(adapted, tmp_path / "a")
        assert not os.listdir(tmp_path)
        # Frozen as a whole, it is the base's own; without state there is nothing to lose.
        frozen, _ = prepare(build(), peft=LoRA(rank=2, target_modules=["q"]))
        save_adapter(frozen, tmp_path / "a")
        model.head.k = None
        save_trained(model, tmp_path / "t")

    def test_a_model_that_trains_something_else_is_refused(self, tmp_path: Path) -> None:
        model, _ = prepare(Net(), freeze_config=self.FREEZE)
        save_trained(model, tmp_path / "t")
        other, _ = prepare(Net(), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": ["embed"]})
        before = state_of(other)
        with pytest.raises(CheckpointError, match=r"embed\.weight"):
            load_trained(other, tmp_path / "t")
        assert_unchanged(other, before)


def test_identity_is_that_of_the_folder_that_the_model_came_from(tmp_path: Path) -> None:
    model: Any = Net()
    assert identity_of(model) is None
    model.name_or_path = "org/name"
    assert identity_of(model) == BaseIdentity("org/name", dtype="float32")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    model.name_or_path = str(tmp_path)
    first = identity_of(model)
    save_file(Net(seed=1).state_dict(), tmp_path / "model.safetensors")
    second = identity_of(model)
    assert first is not None
    assert second is not None
    assert first.fingerprint
    assert first.fingerprint != second.fingerprint


def _two_linears(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def test_an_adapter_knows_a_base_that_was_built_in_python(tmp_path: Path) -> None:
    model, _ = prepare(_two_linears(0), peft=LoRA(target_modules=["0"]))
    with torch.no_grad():
        model[0].lora_B["default"].weight.fill_(0.1)
    save_adapter(model, tmp_path / "adapter")
    again, _ = load_adapter(_two_linears(0), tmp_path / "adapter")
    x = torch.ones(1, 4)
    assert torch.equal(again(x), model(x))
    with pytest.raises(CheckpointError, match="belongs to another base: the model given has other weights"):
        load_adapter(_two_linears(1), tmp_path / "adapter")
    merged = merge(again)
    with pytest.raises(CheckpointError, match="belongs to another base"):
        load_adapter(merged, tmp_path / "adapter")  # it would count twice
    assert not adapters_of(merged)


def killed_between_the_two_renames(monkeypatch: pytest.MonkeyPatch, save: Callable[[], Any]) -> None:
    """A save that got as far as to move the earlier folder aside, and left everything as it was then."""
    rename, calls = os.rename, []

    def second_rename_never_comes(old: Path, new: Path) -> None:
        calls.append(new)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_rename_never_comes)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            save()


class TestKilledSave:
    def test_the_earlier_adapter_is_still_found(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = load_adapter(Net(), saved)[0].eval()(TOKENS)
        killed_between_the_two_renames(monkeypatch, lambda: save_adapter(trained(), saved))
        left = sorted(os.listdir(saved.parent))
        assert left == [f".tmp-adapter-{os.getpid()}", ".tmp-replaced-adapter"]
        assert torch.equal(load_adapter(Net(), saved)[0].eval()(TOKENS), expected)
        assert sorted(os.listdir(saved.parent)) == left, "reading changes nothing"

    def test_a_save_that_fails_afterwards_keeps_it(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        killed_between_the_two_renames(monkeypatch, lambda: save_adapter(trained(), saved))
        broken = trained()
        broken.layers[0]["q"].lora_B["default"].weight.data[0] = float("inf")
        with pytest.raises(CheckpointError, match="not finite"):
            save_adapter(broken, saved)
        assert os.listdir(saved.parent) == ["adapter"]
        load_adapter(Net(), saved)

    def test_the_next_save_replaces_it(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        killed_between_the_two_renames(monkeypatch, lambda: save_adapter(trained(), saved))
        save_adapter(trained(), saved)
        assert not any("head" in key for key in load_file(saved / FILE))
        assert os.listdir(saved.parent) == ["adapter"]

    def test_a_trained_part(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model, _ = prepare(Net(), freeze_config=TestTrainedPart.FREEZE)
        scatter(model)
        save_trained(model, tmp_path / "t")
        killed_between_the_two_renames(monkeypatch, lambda: save_trained(model, tmp_path / "t"))
        assert torch.equal(load_trained(Net(), tmp_path / "t").eval()(TOKENS), model.eval()(TOKENS))


@pytest.mark.parametrize("target", ["adapter", "nothing"])
def test_a_link_is_refused_and_stays(target: str, saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to(target)
    before = (saved / FILE).read_bytes()
    with pytest.raises(CheckpointError, match=rf"link is a link to {target}(.|\n)*remove the link"):
        save_adapter(trained(), link)
    assert os.readlink(link) == target
    assert (saved / FILE).read_bytes() == before
    assert sorted(os.listdir(saved.parent)) == ["adapter", "link"]


FREEZE = {"freeze_modules": ["*"], "unfreeze_modules": ["2"]}


def _named(model: nn.Module, name: str | Path) -> Any:
    model.name_or_path = str(name)  # type: ignore[assignment]
    return model


def _in_folder(folder: Path, model: nn.Module) -> Any:
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    return _named(model, folder)


def _save(model: nn.Module, directory: Path, kind: str) -> None:
    if kind == "adapter":
        prepare(model, peft=LoRA(target_modules=["0"]))
        scatter(model)
        save_adapter(model, directory)
    else:
        prepare(model, freeze_config=FREEZE)
        scatter(model)
        save_trained(model, directory)


def _load(model: nn.Module, directory: Path, kind: str, **options: Any) -> None:
    (load_adapter if kind == "adapter" else load_trained)(model, directory, **options)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["adapter", "trained"])
class TestOtherBase:
    @pytest.mark.parametrize("name", [None, "org/model"])
    @pytest.mark.parametrize("prepared", [False, True])
    def test_known_by_its_values(self, prepared: bool, name: str | None, kind: str, tmp_path: Path) -> None:
        """As every model that is loaded by a hub id, which names no folder."""

        def build(seed: int) -> nn.Module:
            model = _two_linears(seed)
            return model if name is None else _named(model, name)

        def loaded_into(seed: int) -> nn.Module:
            model = build(seed)
            if prepared:
                method = LoRA(target_modules=["0"])
                prepare(model, peft=method) if kind == "adapter" else prepare(model, freeze_config=FREEZE)
            return model

        _save(build(0), tmp_path / "a", kind)
        _load(loaded_into(0), tmp_path / "a", kind)
        other = loaded_into(1)
        before = state_of(other)
        with pytest.raises(CheckpointError, match=r"belongs to another base: (.*) has other weights"):
            _load(other, tmp_path / "a", kind)
        assert_unchanged(other, before)

    def test_saved_from_memory_and_loaded_into_a_folders_model(self, kind: str, tmp_path: Path) -> None:
        _save(_two_linears(0), tmp_path / "a", kind)
        _load(_in_folder(tmp_path / "same", _two_linears(0)), tmp_path / "a", kind)
        with pytest.raises(CheckpointError, match="other weights"):
            _load(_in_folder(tmp_path / "other", _two_linears(1)), tmp_path / "a", kind)

    def test_an_identity_of_the_other_kind_is_no_reason_to_refuse(self, kind: str, tmp_path: Path) -> None:
        _save(_two_linears(0), tmp_path / "a", kind)
        model = _in_folder(tmp_path / "same", _two_linears(0))
        _load(model, tmp_path / "a", kind, base=identity_of(model))

    def test_known_by_its_files(self, kind: str, tmp_path: Path) -> None:
        _save(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", kind)
        _load(_in_folder(tmp_path / "moved", _two_linears(0)), tmp_path / "a", kind)
        with pytest.raises(CheckpointError, match="other weights"):
            _load(_in_folder(tmp_path / "other", _two_linears(1)), tmp_path / "a", kind)

    @pytest.mark.parametrize("prepared", [False, True])
    def test_changed_in_memory_since_it_was_loaded(self, prepared: bool, kind: str, tmp_path: Path) -> None:
        _save(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", kind)
        model: Any = _in_folder(tmp_path / "base", _two_linears(0))
        with torch.no_grad():
            model[0].weight[3, 3] += 0.1
        if prepared:
            prepare(model, **({"peft": LoRA(target_modules=["0"])} if kind == "adapter" else {"freeze_config": FREEZE}))
        before = state_of(model)
        message = r"another base: 0\.weight in memory is not what(.|\n)*merge(.|\n)*do: +load the base again"
        with pytest.raises(CheckpointError, match=message):
            _load(model, tmp_path / "a", kind)
        assert_unchanged(model, before)

    def test_trained_on_a_base_that_was_changed_in_memory(self, kind: str, tmp_path: Path) -> None:
        def changed() -> Any:
            model = _in_folder(tmp_path / "base", _two_linears(0))
            with torch.no_grad():
                model[0].weight.mul_(2)
            return model

        _save(changed(), tmp_path / "a", kind)
        _load(changed(), tmp_path / "a", kind)
        with pytest.raises(CheckpointError, match="other weights"):
            _load(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", kind)

    @pytest.mark.parametrize(
        "cast", [lambda m: m.bfloat16(), lambda m: m.bfloat16().float(), lambda m: m.half(), lambda m: m.double()]
    )
    def test_another_dtype_than_the_files_is_the_same_base(self, cast: Any, kind: str, tmp_path: Path) -> None:
        _save(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", kind)
        _load(cast(_in_folder(tmp_path / "base", _two_linears(0))), tmp_path / "a", kind)

    def test_tensors_under_other_names_or_shapes_are_no_reason_to_refuse(self, kind: str, tmp_path: Path) -> None:
        def build() -> Any:
            model = _two_linears(0)
            save_file({"x.weight": torch.zeros(4, 4), "0.weight": torch.zeros(8, 4)}, tmp_path / "model.safetensors")
            return _named(model, tmp_path)

        _save(build(), tmp_path / "a", kind)
        _load(build(), tmp_path / "a", kind)

    def test_another_config_is_another_base(self, kind: str, tmp_path: Path) -> None:
        folder = tmp_path / "base"

        def build(**config: Any) -> Any:
            model = _in_folder(folder, _two_linears(0))
            (folder / "config.json").write_text(json.dumps(config))
            return model

        config = {"hidden_act": "gelu", "text_config": {"layers": 2}}
        _save(build(**config), tmp_path / "a", kind)
        free = {"transformers_version": "6", "use_cache": False, "id2label": {"0": "x"}, "architectures": ["Y"]}
        _load(build(**config, **free, dtype="float16"), tmp_path / "a", kind)
        other = build(hidden_act="relu", text_config={"layers": 2})
        before = state_of(other)
        with pytest.raises(CheckpointError, match=r"another base: .*base has another config: hidden_act(.|\n)*gelu"):
            _load(other, tmp_path / "a", kind)
        assert_unchanged(other, before)
        with pytest.raises(CheckpointError, match="another config: text_config"):
            _load(build(hidden_act="gelu", text_config={"layers": 3}), tmp_path / "a", kind)
        record = tmp_path / "a" / ("frostline.json" if kind == "adapter" else "trained.json")
        values = json.loads(record.read_text())
        values["base"].pop("config")  # as it was written before configs were recorded
        record.write_text(json.dumps(values))
        _load(build(hidden_act="relu"), tmp_path / "a", kind)

    @pytest.mark.parametrize("name", ["", "org/model"])
    def test_files_cannot_be_compared_with_a_model_that_names_none(self, name: str, kind: str, tmp_path: Path) -> None:
        base = _in_folder(tmp_path / "base", _two_linears(0))
        identity = identity_of(base)
        _save(base, tmp_path / "a", kind)
        message = r"could not be compared(.|\n)*where:(.|\n)*possible:(.|\n)*do: .*/base"
        with pytest.warns(UserWarning, match=message) as caught:
            _load(_named(_two_linears(0), name), tmp_path / "a", kind)
        assert caught[0].filename == __file__, "the line that loads"
        _load(_named(_two_linears(0), name), tmp_path / "a", kind, base=identity)  # told: no warning

    def test_values_cannot_be_compared_in_another_dtype(self, kind: str, tmp_path: Path) -> None:
        _save(_two_linears(0), tmp_path / "a", kind)
        model = _two_linears(0).double()
        before = state_of(model)
        with pytest.raises(UserWarning, match="its values in float32, and the model is in float64"):
            _load(model, tmp_path / "a", kind)  # tests make errors of warnings, and nothing may be left half done
        assert_unchanged(model, before)


def test_a_merged_adapter_counts_already(tmp_path: Path) -> None:
    _save(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", "adapter")
    model, _ = load_adapter(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a")
    merge(model, keep=True)
    load_adapter(model, tmp_path / "a")  # beside the base weights that were put aside
    unmerge(model)
    merge(model)
    with pytest.raises(CheckpointError, match=r"0\.weight in memory is not what"):
        load_adapter(model, tmp_path / "a")


def test_an_identity_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    _save(_in_folder(tmp_path / "base", _two_linears(0)), tmp_path / "a", "adapter")
    of_values = BaseIdentity("there", fingerprint="model-sampled:1")
    with pytest.raises(CheckpointError, match=r"cannot be compared: .*kind sampled"):
        load_adapter(_two_linears(0), tmp_path / "a", base=of_values)


@pytest.mark.parametrize("kind", ["adapter", "trained"])
def test_a_tied_tensor_that_trains_is_no_part_of_the_base(kind: str, tmp_path: Path) -> None:
    def build() -> Any:
        model = _two_linears(0)
        model.tied = nn.Linear(4, 4)
        model.tied.weight = model[2].weight  # type: ignore[index]
        return model

    model = build()
    method = LoRA(target_modules=["0"]) if kind == "adapter" else None
    thaw = {"freeze_modules": ["*"]} if kind == "trained" else {}
    prepare(model, peft=method, freeze_config={**thaw, "unfreeze_modules": ["2", "tied"]})
    scatter(model)
    (save_adapter if kind == "adapter" else save_trained)(model, tmp_path / "a")
    _load(build(), tmp_path / "a", kind)


def test_where_nothing_stayed_frozen_there_is_no_base(tmp_path: Path) -> None:
    model, _ = prepare(_two_linears(0))
    save_trained(model, tmp_path / "t")
    load_trained(_two_linears(1), tmp_path / "t")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("adapter_config.json", {"r": None}, "r is None"),
        ("adapter_config.json", {"r": 0}, "r is 0"),
        ("adapter_config.json", {"r": "2"}, "r is '2'"),
        ("adapter_config.json", {"r": ...}, "it has no r"),
        ("adapter_config.json", {"lora_alpha": ...}, "it has no lora_alpha"),
        ("adapter_config.json", {"lora_alpha": 0}, "lora_alpha is 0"),
        ("adapter_config.json", {"lora_dropout": 1.5}, r"lora_dropout is 1\.5"),
        ("adapter_config.json", {"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ("frostline.json", {"base": None}, "base is None"),
        ("frostline.json", {"base": ["org/model"]}, "base is "),
        ("frostline.json", {"base": {"fingerprint": 3}}, "base: fingerprint is 3"),
        ("frostline.json", {"base": ...}, "it has no 'base'"),
        ("frostline.json", {"plan_digest": []}, r"plan_digest is \[\]"),
    ],
)
def test_damaged_metadata_is_named(file: str, content: dict[str, Any], message: str, saved: Path) -> None:
    values = json.loads((saved / file).read_text()) | content
    (saved / file).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    model = Net()
    before = state_of(model)
    with pytest.raises(CheckpointError, match=rf"{file} is damaged: {message}(.|\n)*where:(.|\n)*possible:(.|\n)*do:"):
        load_adapter(model, saved)
    assert_unchanged(model, before)


def test_an_adapter_saved_while_it_is_merged_belongs_to_the_unmerged_base(saved: Path, tmp_path: Path) -> None:
    model, _ = load_adapter(Net(), saved)
    merge(model, keep=True)
    save_adapter(model, tmp_path / "again")
    load_adapter(Net(), tmp_path / "again")
    load_adapter(model, tmp_path / "again")


def test_the_loader_of_the_other_kind_is_named(saved: Path, tmp_path: Path) -> None:
    """A folder of `save_trained` given to `load_adapter`, and the other way round."""
    model, _ = prepare(Net(), freeze_config={"freeze_modules": ["embed"]})
    folder = save_trained(model, tmp_path / "part")
    before = state_of(fresh := Net())
    with pytest.raises(CheckpointError, match=r"written by save_trained[\s\S]*call frostline\.load_trained\(model, "):
        load_adapter(fresh, folder)
    with pytest.raises(CheckpointError, match=r"written by save_adapter[\s\S]*call frostline\.load_adapter\(model, "):
        load_trained(fresh, saved)
    assert_unchanged(fresh, before)
