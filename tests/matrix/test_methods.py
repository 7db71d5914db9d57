"""Every method x every check that holds for any method."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline.adapters import LoRA, adapters_of, disabled, inject, is_adapted, merge, unmerge
from frostline.errors import AdapterError
from frostline.preparation import prepare
from frostline.sharing import load_adapter, save_adapter
from frostline.trainability import plan_of

Gradients = Callable[..., dict[str, Tensor]]


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(
            second[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_at_the_start_the_output_is_that_of_the_base(variant: Any) -> None:
    base, (model, _) = variant.base().eval(), variant.prepared()
    assert torch.equal(model.eval()(variant.tokens()), base(variant.tokens()))


def test_the_adapter_has_an_effect_in_the_dtype_of_the_base(variant: Any) -> None:
    base, (model, _) = variant.base().eval(), variant.trained()
    out = model.eval()(variant.tokens())
    assert out.dtype == variant.dtype
    assert (out - base(variant.tokens())).abs().max() > 0.05


def test_case_22_one_step_moves_all_of_the_adapter_and_nothing_else(variant: Any, gradients: Gradients) -> None:
    model, plan = variant.trained()
    before = snapshot(model)
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=1.0)
    found = gradients(model.train(), variant.tokens())
    assert set(found) == set(plan.trainable)
    optimizer.step()
    moved = {name for name, value in snapshot(model).items() if not torch.equal(value, before[name])}
    assert moved == {path for path in plan.decisions if plan.decisions[path].kind == "adapter"}


def test_training_and_evaluation_compute_the_same_but_for_dropout(variant: Any) -> None:
    model, _ = variant.trained()
    training, evaluating = model.train()(variant.tokens()), model.eval()(variant.tokens())
    assert torch.equal(training, evaluating) == (not variant.has_noise)


def test_disabled_is_the_base_and_comes_back(variant: Any) -> None:
    base, (model, _) = variant.base().eval(), variant.trained()
    model.eval()
    flags = {name: param.requires_grad for name, param in model.named_parameters()}
    before = model(variant.tokens())
    with disabled(model):
        assert torch.equal(model(variant.tokens()), base(variant.tokens()))
        with disabled(model):
            pass
        assert torch.equal(model(variant.tokens()), base(variant.tokens()))
        assert {name: param.requires_grad for name, param in model.named_parameters()} == flags
    with pytest.raises(KeyError), disabled(model):
        raise KeyError
    assert torch.equal(model(variant.tokens()), before)


def test_merging_keeps_the_output_and_unmerging_restores_every_bit(variant: Any) -> None:
    if variant.linear is not nn.Linear:
        pytest.skip("what a subclass does with its weight is its own")
    model, _ = variant.trained()
    model.eval()
    before, output = snapshot(model), model(variant.tokens())
    merge(model, keep=True)
    merged = model(variant.tokens())
    torch.testing.assert_close(merged, output, rtol=variant.tolerance, atol=10 * variant.tolerance)
    merge(model, keep=True)  # a second time adds nothing
    assert torch.equal(model(variant.tokens()), merged)
    unmerge(model)
    assert_same(before, snapshot(model))
    assert torch.equal(model(variant.tokens()), output)


def test_merging_for_good_gives_a_plain_model(variant: Any) -> None:
    base, (model, _) = variant.base(), variant.trained()
    if any(type(module).__name__ == "OwnForwardLinear" for module in base.modules()):
        with pytest.raises(AdapterError, match="computes in a way of its own"):
            merge(model)
        return
    kept = copy.deepcopy(model)
    merge(kept, keep=True)
    assert merge(model) is model
    assert model.state_dict().keys() == base.state_dict().keys()
    assert [type(module) for module in model.modules()] == [type(module) for module in base.modules()]
    assert not {"frostline_enabled", "frostline_settings", "frostline_merged"} & {
        name for module in model.modules() for name in vars(module)
    }
    assert not adapters_of(model)
    assert torch.equal(model.eval()(variant.tokens()), kept.eval()(variant.tokens()))


def test_case_56_injecting_again_changes_nothing_and_another_method_is_refused(variant: Any) -> None:
    model, _ = variant.trained()
    before = snapshot(model)
    record = adapters_of(model)["default"]
    assert inject(model, variant.method) is record
    assert_same(before, snapshot(model))
    with pytest.raises(AdapterError, match="already has an adapter named 'default'"):
        inject(model, LoRA(rank=7))
    assert_same(before, snapshot(model))
    assert adapters_of(model)["default"] is record


def test_saved_and_loaded_is_the_same(variant: Any, tmp_path: Path) -> None:
    model, _ = variant.trained()
    save_adapter(model, tmp_path / "a")
    again, _ = load_adapter(variant.base(), tmp_path / "a")
    assert_same(snapshot(model), snapshot(again))
    assert torch.equal(model.eval()(variant.tokens()), again.eval()(variant.tokens()))
    assert not any(param.requires_grad for param in again.parameters())


def test_case_78_checkpointing_changes_no_gradient_with_frozen_embeddings(variant: Any, gradients: Gradients) -> None:
    model, plan = variant.trained()
    plain = gradients(model.train(), variant.tokens())
    model.gradient_checkpointing = True
    assert_same(plain, gradients(model, variant.tokens()))
    assert set(plain) == set(plan.trainable)


def test_compiled_is_the_same(variant: Any, gradients: Gradients) -> None:
    if variant.has_noise:
        pytest.skip("compiled code draws other dropout masks")
    if (variant.method.rank, variant.method.alpha, variant.method.use_rslora) != (4, None, False):
        pytest.skip("traces to the same graph as another variant")
    model, _ = variant.trained()
    plain, output = gradients(model, variant.tokens()), model(variant.tokens())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own making
        torch.testing.assert_close(compiled(variant.tokens()), output, rtol=0, atol=variant.tolerance)
        assert_same(plain, gradients(compiled, variant.tokens()), max(variant.tolerance, 1e-5))
        with disabled(compiled):
            assert torch.equal(compiled(variant.tokens()), variant.base()(variant.tokens()))
    torch._dynamo.reset()


def test_autocast_computes_in_bf16_and_gives_gradients_in_the_adapter_s_dtype(
    variant: Any, gradients: Gradients
) -> None:
    model, plan = variant.trained()
    model.train()
    exact = gradients(model, variant.tokens())
    with torch.autocast("cpu", torch.bfloat16):
        output = model(variant.tokens())
        found = gradients(model, variant.tokens())
    assert output.dtype == (torch.float64 if variant.dtype is torch.float64 else torch.bfloat16)
    for name, grad in found.items():
        assert f"torch.{plan.decisions[name].dtype}" == str(grad.dtype)
        assert (grad - exact[name]).double().norm() <= 0.25 * exact[name].double().norm(), name


def test_gradients_are_finite_differences(variant: Any) -> None:
    if variant.dtype is not torch.float64 or variant.method.to_config()["dtype"] != "auto":
        pytest.skip("needs float64 throughout")
    model, plan = variant.trained()
    params = dict(model.named_parameters())
    trained = tuple(params[path] for path in plan.trainable)

    def forward(*values: Tensor) -> Tensor:
        swapped = dict(zip(plan.trainable, values, strict=True))
        return torch.func.functional_call(model, swapped, (variant.tokens(),))

    assert torch.autograd.gradcheck(forward, trained, fast_mode=True)


def test_function_transforms_work(variant: Any, gradients: Gradients) -> None:
    if variant.has_noise:
        pytest.skip("random numbers need a randomness mode there")
    model, plan = variant.trained()
    trained = {path: param.detach() for path, param in model.named_parameters() if path in plan.trainable}
    weights = torch.linspace(-1, 1, 5)

    def loss(values: dict[str, Tensor]) -> Tensor:
        return (torch.func.functional_call(model, values, (variant.tokens(),)).double() * weights).pow(2).sum()

    assert_same(gradients(model, variant.tokens()), torch.func.grad(loss)(trained), variant.tolerance)


def test_names_of_the_base_stay_and_the_adapter_s_are_those_of_the_plan(variant: Any) -> None:
    base, (model, plan) = variant.base(), variant.prepared()
    adapter = {path for path, decision in plan.decisions.items() if decision.kind == "adapter"}
    assert set(model.state_dict()) - set(base.state_dict()) == adapter == set(plan.trainable)
    assert set(base.state_dict()) <= set(model.state_dict())
    targets = adapters_of(model)["default"].targets
    assert adapter == {f"{path}.lora_{letter}.default.weight" for path in targets for letter in "AB"}
    for path, decision in plan.decisions.items():
        assert decision.shape == tuple(model.state_dict()[path].shape)
        assert f"torch.{decision.dtype}" == str(model.state_dict()[path].dtype)


def test_a_base_checkpoint_loads_after_injection(variant: Any) -> None:
    other = variant.base()
    with torch.no_grad():
        for param in other.parameters():
            param.mul_(0.5)
    model, plan = variant.prepared()
    result = model.load_state_dict(other.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) == set(plan.trainable)
    assert torch.equal(model.eval()(variant.tokens()), other.eval()(variant.tokens()))


def test_a_copy_and_a_state_dict_round_trip_are_the_same_model(variant: Any) -> None:
    model, plan = variant.trained()
    model.eval()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(variant.tokens()), model(variant.tokens()))
    with torch.no_grad():
        for path in plan.trainable:
            twin.get_parameter(path).zero_()
    assert not torch.equal(twin(variant.tokens()), model(variant.tokens()))
    fresh, _ = variant.prepared()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(variant.tokens()), model(variant.tokens()))
    assert adapters_of(twin)["default"].targets == adapters_of(model)["default"].targets


def test_a_pickled_model_is_the_same(variant: Any, tmp_path: Path) -> None:
    model, plan = variant.trained()
    torch.save(model, tmp_path / "model.pt")  # as users do; Frostline itself writes no pickle
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert_same(snapshot(model), snapshot(twin))
        assert torch.equal(twin.eval()(variant.tokens()), model.eval()(variant.tokens()))
        assert adapters_of(twin) == adapters_of(model)
        assert plan_of(twin).digest == plan.digest
        plan_of(twin).verify(twin)
        assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
        twin.train()
        assert [module.training for module in twin.modules()] == [module.training for module in model.train().modules()]


def test_values_depend_on_seed_and_path_alone(variant: Any) -> None:
    torch.manual_seed(1)
    first, _ = variant.prepared()
    torch.manual_seed(2)
    second = variant.base()
    for target in reversed(adapters_of(first)["default"].targets):  # another order
        prefix, _, name = target.rpartition(".")
        variant.method.transform(second.get_submodule(target), name, prefix)
    assert_same(snapshot(first), {name: second.state_dict()[name] for name in first.state_dict()})


def test_case_92_a_frozen_adapter_stays_active(variant: Any) -> None:
    model, plan = variant.trained(
        freeze_config={"freeze_modules": [{"param": "*.lora_*"}], "unfreeze_modules": ["norm"]}
    )
    assert plan.trainable
    assert all(".norm." in path for path in plan.trainable)
    base = variant.base().eval()
    assert not torch.equal(model.eval()(variant.tokens()), base(variant.tokens()))


def test_a_method_reads_back_from_its_config(variant: Any) -> None:
    assert type(variant.method).from_config(variant.method.to_config()) == variant.method


def test_case_126_preparing_the_same_again_keeps_the_trained_values(variant: Any) -> None:
    model, plan = variant.trained()
    before = snapshot(model)
    again, same = prepare(model, peft=variant.method)
    assert again is model
    assert same.digest == plan.digest
    assert_same(before, snapshot(model))
    assert all(is_adapted(model.get_submodule(path)) for path in adapters_of(model)["default"].targets)
