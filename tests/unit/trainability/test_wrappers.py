"""One plan behind compilation, activation checkpointing, loading, quantization, and helpers that touch weights."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations

import frostline as fl
from frostline.adapters import disabled, merge, unmerge
from frostline.trainability.proof.frozen_part import FrozenPart
from frostline.training.gradient_checkpointing import enable_gradient_checkpointing
from frostline.tree import canonical_named_parameters, set_trainable

from .conftest import Encoder, encoder, optimizer_of, step, trained

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}
LORA: dict[str, Any] = {"method": "lora", "rank": 2, "target_modules": ["linear"]}


def flags(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.requires_grad}


def gradients(model: nn.Module) -> set[str]:
    model.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    return {path for path, param in canonical_named_parameters(model) if param.grad is not None}


# -- compile


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning", "ignore:.*:UserWarning")
def test_case_45_flags_flipped_after_compilation_reach_the_gradients(backend: str) -> None:
    """Row 45, row 46: a compiled model runs as planned before and after its plan changes."""
    torch._dynamo.reset()
    bare, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model = torch.compile(bare, backend=backend)
    bound = plan.bind(model, step="torch.compile")
    assert bound == plan
    assert fl.plan_of(model) is bound
    optimizer = optimizer_of(bare)
    bound.verify(model, optimizer)
    assert gradients(model) == set(plan.trainable)
    other = fl.resolve(bare, freeze_config={"freeze_modules": ["embed", {"layers": "1:"}]})
    other.apply(model)
    assert gradients(model) == set(other.trainable)
    other.verify(model)
    plan.apply(bare)
    assert gradients(model) == set(plan.trainable)
    bare.compile(backend=backend)  # in place: no wrapper
    assert plan.bind(bare) == plan
    assert gradients(bare) == set(plan.trainable)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning", "ignore:.*:UserWarning")
def test_case_88_adapters_go_into_a_compiled_model() -> None:
    """Row 88: names are those of the bare model, and the next call computes with the adapters."""
    torch._dynamo.reset()
    bare = encoder().eval()
    model = torch.compile(bare, backend="eager")
    x = torch.randn(2, 4)
    before = model(x)
    _, plan = fl.prepare(model, peft=LORA)
    assert plan.trainable[0] == "layers.0.linear.lora_A.default.weight"
    with torch.no_grad():
        for path, param in canonical_named_parameters(bare):
            if "lora_B" in path:
                param.fill_(0.5)
    assert not torch.allclose(model(x), before)
    torch.testing.assert_close(model(x), bare(x))
    plan.verify(model)


def test_case_46_blocks_compiled_or_checkpointed_one_by_one_are_still_one_list() -> None:
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    model.layers[2] = checkpoint_wrapper(model.layers[2])
    parametrizations.weight_norm(model.head)
    checkpointed = encoder()
    checkpointed.layers[1] = checkpoint_wrapper(checkpointed.layers[1])
    assert fl.resolve(checkpointed, freeze_config=FREEZE) == plan
    bound = plan.bind(model, step="wrapping")
    assert not bound.decisions["layers.0.linear.weight"].trains
    assert bound.decisions["head.parametrizations.weight.original1"].trains
    assert flags(model) == set(bound.trainable)


def test_a_list_of_linears_stays_one_list_when_some_are_adapted_or_parametrized() -> None:
    def build() -> nn.Module:
        model = nn.Module()
        model.stack = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        return model

    rule = {"freeze_modules": [{"layers": 0}]}
    _, plan = fl.prepare(model := build(), peft={**LORA, "target_modules": ["stack.2"]}, freeze_config=rule)
    assert fl.resolve(model, peft={**LORA, "target_modules": ["stack.2"]}, freeze_config=rule) == plan
    model = build()
    parametrizations.weight_norm(model.stack[1])
    assert fl.resolve(model, freeze_config=rule).frozen == ("stack.0.weight", "stack.0.bias")


def test_gradient_checkpointing_of_transformers_keeps_the_plan() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    model, plan = fl.prepare(transformers.LlamaForCausalLM(config), peft={**LORA, "target_modules": ["q_proj"]})
    enable_gradient_checkpointing(model)
    model.train()
    bound = plan.bind(model, step="gradient checkpointing")
    assert bound == plan
    tokens = torch.arange(6).reshape(1, 6)
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert {path for path, param in canonical_named_parameters(model) if param.grad is not None} == set(plan.trainable)
    bound.verify(model)


# -- loading that replaces parameters


def test_case_30_assigned_weights_keep_the_plan_after_bind() -> None:
    """Row 30, row 21: `assign=True` makes new parameter objects, of which the optimizer must know."""
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    early = optimizer_of(model)
    model.load_state_dict({name: tensor.clone() for name, tensor in encoder().state_dict().items()}, assign=True)
    with pytest.raises(fl.PlanMismatchError, match=r"\d+ tensors that are not parameters of the model: build it after"):
        plan.verify(model, early)
    for param in model.parameters():  # as loaders do that make their parameters anew
        set_trainable(param, True)
    bound = plan.bind(model, step="loading")
    assert bound == plan
    bound.verify(model, optimizer_of(model))
    assert gradients(model) == set(plan.trainable)


def test_a_model_built_on_the_meta_device_keeps_the_plan_when_it_is_materialized() -> None:
    with torch.device("meta"):
        model = Encoder()
    model, plan = fl.prepare(model, freeze_config=FREEZE)
    model.to_empty(device="cpu")
    model.load_state_dict(encoder().state_dict())
    assert plan.bind(model, step="to_empty") == plan
    assert flags(model) == set(plan.trainable)


def tied() -> Any:
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False), "body": nn.Linear(4, 4)})
    model["head"].weight = model["embed"].weight
    return model


def test_case_47_a_tie_that_loading_broke_is_an_error_where_it_trains_and_a_note_where_not() -> None:
    """Row 47's kind: two copies that train drift apart without a word."""
    model, plan = fl.prepare(tied(), freeze_config={"freeze_modules": ["body"]})
    model.load_state_dict({name: tensor.clone() for name, tensor in tied().state_dict().items()}, assign=True)
    with pytest.raises(fl.PlanMismatchError, match=r"head\.weight: planned as one tensor with embed\.weight"):
        plan.verify(model)
    with pytest.raises(fl.PlanMismatchError, match=r"were one tensor in the plan and are 2 now[\s\S]*tie_weights"):
        plan.bind(model, step="loading")
    model["head"].weight = model["embed"].weight
    assert plan.bind(model) == plan

    model, plan = fl.prepare(tied(), freeze_config={"freeze_modules": ["embed"]})
    model.load_state_dict({name: tensor.clone() for name, tensor in tied().state_dict().items()}, assign=True)
    bound = plan.bind(model, step="loading")
    assert "untied by loading, frozen: embed.weight, head.weight" in bound.notes
    assert trained(model) == {"body.weight", "body.bias"}


# -- quantization


class PackedLinear(nn.Module):
    """A stand-in for a quantized layer that keeps its weight in buffers: int8 and a scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().max() / 127
        self.register_buffer("packed", torch.round(linear.weight.detach() / scale).to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.packed.float() * self.scale).T + self.bias


def test_weights_packed_into_buffers_are_frozen_ones_or_an_error() -> None:
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.embed = PackedLinear(model.embed)
    bound = plan.bind(model, step="quantization")
    assert "packed into buffers by quantization: embed.weight" in bound.notes
    bound.verify(model)
    assert gradients(model) == set(plan.trainable)
    model.head = PackedLinear(model.head)
    with pytest.raises(fl.PlanMismatchError, match=r"1 planned parameters vanished: head\.weight"):
        bound.bind(model, step="quantization")


def test_a_packed_parameter_of_another_shape_is_a_frozen_one_or_an_error() -> None:
    """As bitsandbytes packs: two 4-bit numbers a byte, in one column."""
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.embed.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    bound = plan.bind(model, step="quantization")
    assert bound == plan  # at the shape of the weight that it stands for
    assert "packed by quantization: embed.weight (uint8 [8, 1])" in bound.notes
    assert bound.bind(model).notes == bound.notes
    bound.verify(model)
    model.head.weight = nn.Parameter(torch.zeros(6, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(fl.PlanMismatchError, match=r"head\.weight is to train, but its dtype is uint8 now"):
        bound.bind(model, step="quantization")


def test_a_packed_tensor_that_poses_as_float_is_seen_through() -> None:
    """As torchao packs: a tensor subclass that says float32 and keeps int8."""
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.embed.weight = nn.Parameter(Posing(torch.randn(4, 4)), requires_grad=False)
    bound = plan.bind(model, step="quantization")
    assert bound == plan
    part = FrozenPart(model, bound)
    assert part.changed() == []
    model.embed.weight.packed.add_(1)
    assert part.changed() == ["embed.weight"]
    model.head.weight = nn.Parameter(Posing(torch.randn(3, 4)), requires_grad=False)
    with pytest.raises(fl.PlanMismatchError, match=r"head\.weight is to train, but its dtype is int8 now"):
        bound.bind(model, step="quantization")
    with pytest.raises(fl.ConfigError, match=r"head\.weight is to train, but its dtype is int8"):
        fl.resolve(model, freeze_config={"freeze_modules": ["embed"], "unfreeze_modules": ["head"]})


class Posing(torch.Tensor):
    """Says that it is float32; keeps int8 and a scale."""

    packed: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Posing:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values: torch.Tensor) -> None:
        self.scale = values.abs().max() / 127
        self.packed = torch.round(values / self.scale).to(torch.int8)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["packed", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            copy = cls.__new__(cls, torch.empty(args[0].shape))
            copy.packed, copy.scale = args[0].packed, args[0].scale
            return copy
        raise NotImplementedError(func)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
def test_int8_weights_of_torchao() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    quantize_(model.layers[0], Int8WeightOnlyConfig())
    bound = plan.bind(model, step="quantization")
    assert bound == plan
    FrozenPart(model, bound)
    assert gradients(model) == set(plan.trainable)
    quantize_(model.layers[2], Int8WeightOnlyConfig())
    with pytest.raises(fl.PlanMismatchError, match=r"layers\.2\.linear\.weight is to train, but its dtype is int8 now"):
        bound.bind(model, step="quantization")


# -- helpers of ours preserve flags exactly


def test_case_24_case_25_case_26_no_helper_changes_a_flag() -> None:
    """Row 24, row 25, row 26: switching off, merging and unmerging leave each tensor's flag as it was."""
    model, plan = fl.prepare(
        encoder(), peft=LORA, freeze_config={"freeze_modules": [{"param": "layers.1.linear.lora_A.*"}]}
    )
    before = {path: param.requires_grad for path, param in canonical_named_parameters(model)}
    assert not before["layers.1.linear.lora_A.default.weight"]
    with disabled(model):
        assert {path: param.requires_grad for path, param in canonical_named_parameters(model)} == before
        plan.verify(model)
    merge(model, keep=True)
    plan.verify(model)
    unmerge(model)
    assert {path: param.requires_grad for path, param in canonical_named_parameters(model)} == before
    plan.verify(model)
    merge(model)
    assert {path: param.requires_grad for path, param in canonical_named_parameters(model)} == {
        path: flag for path, flag in before.items() if "lora_" not in path
    }


# -- odd models


def test_names_of_wrappers_that_are_real_names_and_parameters_in_containers() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4)
            self._orig_mod = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))])
            self.banks = nn.ParameterDict({"a": nn.Parameter(torch.ones(4)), "b": nn.Parameter(torch.ones(4))})
            self.again = self.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.module(x)) * self._orig_mod[0] * self._orig_mod[1] * self.banks["a"]

    rule = {"freeze_modules": [{"path": "_orig_mod"}, {"param": "banks.b"}]}
    model, plan = fl.prepare(torch.compile(Odd(), backend="eager"), freeze_config=rule)
    assert plan.frozen == ("_orig_mod.0", "_orig_mod.1", "banks.b")
    assert plan.decisions["again.weight"].path == "module.weight"
    assert plan.bind(model) == plan
    with pytest.raises(fl.SelectorError, match=r"both frozen and trained[\s\S]*again\.weight: unfreeze_modules"):
        fl.resolve(Odd(), freeze_config={"freeze_modules": ["module"], "unfreeze_modules": ["again"]})
    inner = model._modules["_orig_mod"]
    assert inner is not None
    inner.again = nn.Linear(4, 4)  # the shared module is no longer shared
    with pytest.raises(fl.PlanMismatchError, match=r"module\.weight and again\.weight were one tensor"):
        plan.bind(model, step="surgery")


def test_a_container_in_place_of_a_module_takes_over_what_was_decided_there() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    rule: dict[str, Any] = {
        "freeze_modules": [{"type": "BatchNorm1d"}, {"param": "*.bias"}],
        "unfreeze_modules": [{"param": "embed.bias"}],
    }
    model, plan = fl.prepare(encoder(), freeze_config=rule)
    model.layers[0].norm = Other()  # no selector by type reaches it any more
    model.embed = nn.Sequential(nn.Linear(4, 4))
    bound = plan.bind(model, step="surgery")
    assert not bound.decisions["layers.0.norm.inner.weight"].trains
    assert bound.decisions["layers.0.norm.inner.weight"].rule.text == "freeze_modules type BatchNorm1d"
    assert bound.decisions["embed.0.bias"].trains
    assert bound.decisions["embed.0.weight"].rule.text == "added by surgery"
    model, plan = fl.prepare(encoder(), peft=LORA, new=["head.weight", "head.bias"])
    model.head = nn.Sequential(nn.Linear(4, 3))
    bound = plan.bind(model, step="surgery")
    assert bound.decisions["head.0.weight"].kind == "new"  # a fresh head goes on training
    assert set(bound.trainable) > {"head.0.weight", "head.0.bias"}


def test_a_parameter_of_the_root_is_not_replaced_by_one_far_below() -> None:
    model = encoder()
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    model, plan = fl.prepare(model, freeze_config=FREEZE)
    del model.scale
    model.layers[2].extra = nn.Parameter(torch.ones(1))
    with pytest.raises(fl.PlanMismatchError, match="1 planned parameters vanished: scale"):
        plan.bind(model)


def test_all_faults_of_a_step_come_at_once() -> None:
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.register_module("embed", None)
    model.head = nn.Linear(4, 5)
    with pytest.raises(fl.PlanMismatchError, match=r"3 problems[\s\S]*embed\.weight, embed\.bias[\s\S]*head\.bias has"):
        plan.bind(model, step="surgery")


def test_eight_bit_floats_cannot_train() -> None:
    model, plan = fl.prepare(encoder(), freeze_config=FREEZE)
    model.head.weight = nn.Parameter(model.head.weight.detach().to(torch.float8_e4m3fn))
    with pytest.raises(fl.PlanMismatchError, match=r"head\.weight is to train, but its dtype is float8_e4m3fn now"):
        plan.bind(model)


def test_verify_after_a_resumed_optimizer_state_is_by_identity() -> None:
    """Loading optimizer state keeps the parameter objects; another model's optimizer is found out."""
    model, _ = fl.prepare(encoder(), freeze_config=FREEZE)
    optimizer = optimizer_of(model)
    step(model, optimizer)
    again, plan_again = fl.prepare(encoder(), freeze_config=FREEZE)
    resumed = optimizer_of(again)
    resumed.load_state_dict(optimizer.state_dict())
    plan_again.verify(again, resumed)
    with pytest.raises(fl.PlanMismatchError, match="not parameters of the model"):
        plan_again.verify(again, optimizer)
