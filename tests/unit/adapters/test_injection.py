from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline.adapters import LoRA, adapters_of, inject, planned_params, remove_adapters
from frostline.adapters.layers import lora_linear
from frostline.adapters.layers.in_place import InPlaceAdapted
from frostline.adapters.targets import find_targets
from frostline.errors import AdapterError, SelectorError
from frostline.preparation import prepare, resolve
from frostline.tree import ModuleTree


class Chain(nn.Module):
    """Many linears, as many modules as a large model has."""

    def __init__(self, count: int, device: str = "meta") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4, device=device), nn.ReLU()) for _ in range(count))


def count_calls(action: Callable[[], object]) -> int:
    """Python and C calls made by `action`: work, without a clock."""
    num_calls = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return num_calls


def refuse(tree: ModuleTree, method: LoRA) -> None:
    with pytest.raises(AdapterError, match="left with no module to adapt"):
        find_targets(tree, method)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("targets", ["all-linear", [{"glob": "layers.*.0"}], [{"layers": ":"}]])
def test_case_87_work_is_linear_in_the_number_of_modules(device: str, targets: Any) -> None:
    inject(Chain(2, device), LoRA(target_modules=targets))  # caches
    counts = []
    for size in (200, 400, 800):
        model = Chain(size, device)
        counts.append(count_calls(lambda model=model: inject(model, LoRA(rank=1, target_modules=targets))))
    assert counts[2] < 5 * counts[0]  # linear is 4 times, quadratic would be 16; caches and finalizers blur it
    assert counts[2] / 800 < 1200  # calls for each adapted linear; a second is enough for thousands of them


def test_case_87_ties_and_shared_modules_stay_linear() -> None:
    counts = []
    for size in (100, 200, 400):
        model = Chain(size, "cpu")
        for layer in model.layers:
            layer.twin = nn.Linear(4, 4)
            layer.twin.weight = layer[0].weight  # every linear is tied to another one
            layer.again = layer[1]
        tree, method = ModuleTree.from_model(model), LoRA(exclude_modules=[{"glob": "*.0"}, "twin"], target_modules="*")
        counts.append(count_calls(lambda tree=tree, method=method: refuse(tree, method)))
        counts[-1] += count_calls(lambda tree=tree: refuse(tree, LoRA()))
    assert counts[2] < 5 * counts[0]


@pytest.mark.parametrize("name", ["default", "x", "my-adapter_2", "_private", "foo", "foobar"])
def test_case_127_any_sensible_name(net: Any, name: str) -> None:
    record = inject(net, LoRA(rank=2), adapter=name)
    assert record.name == name
    assert list(adapters_of(net)) == [name]
    assert f"layers.0.q_proj.lora_A.{name}.weight" in net.state_dict()


@pytest.mark.parametrize("name", ["", "a.b", "1st", "a b", "a\n", "ü", "train", "keys", "training", "forward", "items"])
def test_other_names_are_refused_before_anything_changes(net: Any, name: str) -> None:
    before = net.state_dict().keys()
    with pytest.raises(AdapterError, match=r"adapter name .* is not valid"):
        inject(net, LoRA(), adapter=name)
    assert net.state_dict().keys() == before
    assert not any(isinstance(module, InPlaceAdapted) for module in net.modules())


@pytest.mark.parametrize(
    ("method", "error"),
    [
        (LoRA(target_modules=["q_proj", "embed"]), AdapterError),
        (LoRA(target_modules=["q_proj", "k_proj"]), SelectorError),
        (LoRA(exclude_modules=["k_proj"]), SelectorError),
    ],
)
@pytest.mark.parametrize("entry", ["inject", "prepare", "resolve", "call"])
def test_nothing_changes_when_it_is_refused(net: Any, method: LoRA, error: type[Exception], entry: str) -> None:
    net.embed.weight.requires_grad_(False)
    flags = {name: param.requires_grad for name, param in net.named_parameters()}
    attributes = {id(module): set(vars(module)) for module in net.modules()}
    calls: dict[str, Callable[[], object]] = {
        "inject": lambda: inject(net, method),
        "prepare": lambda: prepare(net, peft=method),
        "resolve": lambda: resolve(net, peft=method),
        "call": lambda: method(net),
    }
    with pytest.raises(error):
        calls[entry]()
    assert {name: param.requires_grad for name, param in net.named_parameters()} == flags
    assert {id(module): set(vars(module)) for module in net.modules()} == attributes
    assert [type(module) for module in net.modules() if isinstance(module, nn.Linear)] == [nn.Linear] * 5


def test_a_fault_in_the_middle_is_rolled_back(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(net, LoRA(rank=2, target_modules=["q_proj"]), adapter="a")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    real, drawn = lora_linear.initial_down, []

    def out_of_memory(*args: Any, **kwargs: Any) -> Tensor:
        drawn.append(args)
        if len(drawn) == 4:
            raise torch.OutOfMemoryError
        return real(*args, **kwargs)

    monkeypatch.setattr("frostline.adapters.methods.lora.initial_down", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        inject(net, LoRA(rank=3), adapter="b")
    assert net.state_dict().keys() == before.keys()
    assert list(adapters_of(net)) == ["a"]
    assert [type(layer.v_proj) for layer in net.layers] == [nn.Linear] * 2
    assert list(net.layers[0].q_proj.frostline_settings) == ["a"]
    monkeypatch.undo()
    inject(net, LoRA(rank=3), adapter="b")
    assert list(net.layers[0].q_proj.frostline_settings) == ["a", "b"]


def test_case_75_two_adapters_add_up(net: Any, tokens: Tensor, scattered: Callable[..., None]) -> None:
    base = net(tokens)
    inject(net, LoRA(rank=2, target_modules=["q_proj"]), adapter="a")
    scattered(net)
    first = net(tokens)
    inject(net, LoRA(rank=3, target_modules=["q_proj", "v_proj"]), adapter="b")
    assert torch.equal(net(tokens), first)
    assert not torch.equal(first, base)
    layer = net.layers[0].q_proj
    scattered(net)
    x = torch.randn(5, 6)
    expected = nn.functional.linear(
        x, layer.weight + layer.frostline_delta("a") + layer.frostline_delta("b"), layer.bias
    )
    torch.testing.assert_close(layer(x), expected)
    assert [record.targets for record in adapters_of(net).values()] == [
        ("layers.0.q_proj", "layers.1.q_proj"),
        ("layers.0.q_proj", "layers.0.v_proj", "layers.1.q_proj", "layers.1.v_proj"),
    ]


def test_case_56_a_name_in_use_is_refused(net: Any) -> None:
    inject(net, LoRA(rank=2), adapter="a")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(AdapterError, match=r"already has an adapter named 'a' \(LoRA r2\)") as caught:
        inject(net, LoRA(rank=2, alpha=1.0), adapter="a")
    assert "names in use: a" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_values_are_seeded_by_seed_and_path(build_net: Callable[..., Any]) -> None:
    def drawn(model: Any, **method: Any) -> Tensor:
        inject(model, LoRA(rank=2, **method))
        return model.layers[1].q_proj.lora_A["default"].weight

    torch.manual_seed(5)
    first = drawn(build_net())
    state = torch.get_rng_state()
    some = build_net()
    torch.manual_seed(6)
    assert torch.equal(drawn(some, target_modules=[{"path": "layers.1.q_proj"}]), first)
    torch.set_rng_state(state)
    deeper = build_net(5)
    assert torch.equal(drawn(deeper), first)
    assert not torch.equal(drawn(build_net(), seed=1), first)
    assert not torch.equal(deeper.layers[2].q_proj.lora_A["default"].weight, first)


def test_injection_moves_no_global_generator(net: Any) -> None:
    before = torch.get_rng_state()
    inject(net, LoRA())
    assert torch.equal(torch.get_rng_state(), before)


def test_new_tensors_are_drawn_on_the_cpu_whatever_the_default_device(net: Any, build_net: Callable[..., Any]) -> None:
    with torch.device("meta"):
        inject(net, LoRA())
    plain = build_net()
    inject(plain, LoRA())
    for (name, value), other in zip(net.state_dict().items(), plain.state_dict().values(), strict=True):
        assert value.device.type == "cpu", name
        assert torch.equal(value, other), name


def test_a_model_on_the_meta_device_gets_meta_factors() -> None:
    model = Chain(3)
    inject(model, LoRA(rank=2))
    assert {param.device.type for param in model.parameters()} == {"meta"}


def test_case_88_a_compiled_model_is_adapted_by_its_own_names(net: Any, tokens: Tensor) -> None:
    compiled = torch.compile(net, backend="eager")
    model, plan = prepare(compiled, peft=LoRA(rank=2, target_modules=[{"path": "layers.0.q_proj"}]))
    assert model is compiled
    assert adapters_of(compiled) == adapters_of(net)
    assert set(plan.trainable) == {f"layers.0.q_proj.lora_{letter}.default.weight" for letter in "AB"}
    assert "layers.0.q_proj.lora_A.default.weight" in net.state_dict()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_what_was_planned_is_what_comes(net: Any, dtype: str) -> None:
    method = LoRA(rank=2, dtype=dtype)
    tree = ModuleTree.from_model(net)
    targets = find_targets(tree, method)
    planned = {
        f"{path}.{param.suffix}": (param.shape, param.dtype)
        for path, params in planned_params(tree, method, targets, adapter="x").items()
        for param in params
    }
    inject(net, method, adapter="x", targets=targets)
    made = {name: (tuple(p.shape), p.dtype) for name, p in net.named_parameters() if ".lora_" in name}
    assert made == planned


class Keeping(nn.Linear):
    """Has an attribute of its own, under any name, that its forward reads."""

    def __init__(self, name: str) -> None:
        super().__init__(4, 4)
        self.name = name
        setattr(self, name, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * getattr(self, self.name)


@pytest.mark.parametrize("name", ["merged", "adapters_enabled", "adapter_settings", "factor", "delta", "adapter"])
def test_attributes_of_the_base_s_own_stay(name: str) -> None:
    model = nn.Sequential(Keeping(name), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    before, held = model(x), set(vars(model[0]))
    prepare(model, peft=LoRA(rank=2))
    assert torch.equal(model(x), before)
    remove_adapters(model)
    assert set(vars(model[0])) == held
    assert torch.equal(model(x), before)
