"""The flat arrays: subtrees are ranges, whatever the model looks like."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline.errors import ModelError
from frostline.tree import AdapterPart, ModuleTree, PlannedParam


class Part(AdapterPart, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)


NAMES = st.sampled_from(["a", "b", "ab", "0", "1", "module"])
LEAVES = st.builds(lambda bias: nn.Linear(1, 1, bias=bias), st.booleans()) | st.builds(nn.ReLU) | st.builds(Part)
TREES = st.recursive(LEAVES, lambda below: st.builds(nn.ModuleDict, st.dictionaries(NAMES, below, max_size=3)))


@settings(max_examples=80, deadline=None)
@given(TREES)
def test_ranges_are_the_subtrees_that_torch_walks(model: nn.Module) -> None:
    tree = ModuleTree.from_model(model)
    assert [(ref.path, ref.module) for ref in tree.modules] == list(model.named_modules(remove_duplicate=False))
    assert [ref.path for ref in tree.params] == [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for index, ref in enumerate(tree.modules):
        below = [other.path for other in tree.modules[index : ref.end]]
        assert below == [".".join(filter(None, [ref.path, name])) for name, _ in ref.module.named_modules()]
        own = [tree.params[at].path.rpartition(".")[2] for at in range(ref.param_start, ref.own_param_end)]
        assert own == [name for name, _ in ref.module.named_parameters(recurse=False)]
        assert ref.param_end - ref.param_start == len(list(ref.module.parameters()))
        children = [tree.modules[child].module for child in tree.children(index)]
        assert children == list(ref.module.children())
        assert all(tree.modules[child].parent == index for child in tree.children(index))
        parts = [ref.path.split(".")[:depth] for depth in range(len(ref.path.split(".")) + 1)]
        inside = any(isinstance(model.get_submodule(".".join(part)), Part) for part in parts)
        assert ref.is_adapter == inside


def test_planned_parameters_count_for_their_base_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4)))
    tree = ModuleTree.from_model(model)
    planned = PlannedParam("lora_A.default.weight", (8, 2), torch.bfloat16)
    grown = tree.with_planned_params({1: [planned]})
    assert [ref.path for ref in grown.params][:3] == ["0.weight", "0.bias", "0.lora_A.default.weight"]
    new = grown.params[2]
    assert (new.param, new.num_elements, new.dtype_name, new.is_adapter) == (None, 16, "bfloat16", True)
    assert list(grown.adapter_params) == [2]
    assert not tree.adapter_params
    assert [(ref.param_start, ref.param_end) for ref in grown.modules] == [(0, 5), (0, 3), (3, 5), (3, 5)]
    assert len(tree.params) == 4


def test_names_of_one_tensor_and_buffers() -> None:
    shared = nn.BatchNorm1d(2)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared)
    tree = ModuleTree.from_model(model)
    assert dict(tree.names_of_tensor) == {0: (0, 4), 1: (1, 5)}
    assert [(ref.path, ref.owner, ref.persistent) for ref in tree.buffers] == [
        ("0.running_mean", 1, True),
        ("0.running_var", 1, True),
        ("0.num_batches_tracked", 1, True),
    ]
    assert tree.module_index["2"] == 3
    assert tree.param_index["2.bias"] == 5


def test_block_lists_are_outermost_and_of_one_class() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])

    model = nn.ModuleDict(
        {
            "layers": nn.ModuleList([Block(), Block()]),
            "mixed": nn.ModuleList([nn.Linear(1, 1), nn.ReLU()]),
            "empty": nn.ModuleList(),
            "tower": nn.ModuleDict({"blocks": nn.ModuleList([Block()])}),
        }
    )
    tree = ModuleTree.from_model(model)
    assert [tree.modules[index].path for index in tree.block_lists] == ["layers", "tower.blocks"]
    assert [ModuleTree.from_model(nn.ModuleList([Block()])).modules[0].path] == [""]
    assert ModuleTree.from_model(nn.ModuleList([Block()])).block_lists == [0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_reading_changes_nothing_and_needs_no_values(device: str) -> None:
    with torch.device(device):
        model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    tree = ModuleTree.from_model(model)
    assert [(ref.path, ref.shape, ref.requires_grad) for ref in tree.params] == [
        ("weight", (2, 2), True),
        ("bias", (2,), False),
    ]
    assert tree.modules[0].name == ""


def test_a_parameter_without_a_shape_is_refused() -> None:
    model = nn.Sequential(nn.ReLU(), nn.LazyLinear(4))
    with pytest.raises(ModelError, match=r"1\.weight has no shape yet \(LazyLinear(.|\n)*do:  .*run one batch"):
        ModuleTree.from_model(model)
    model(torch.zeros(2, 3))
    assert ModuleTree.from_model(model).params[0].shape == (4, 3)


def test_two_modules_at_one_path_are_refused() -> None:
    model = nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Linear(1, 1)})})
    model._modules["a.c"] = nn.ReLU()  # past add_module, which takes no dots
    assert [ref.path for ref in ModuleTree.from_model(model).modules] == ["", "a", "a.b", "a.c"]
    model._modules["a.b"] = nn.Linear(1, 1)
    with pytest.raises(ModelError, match=r"2 modules have the path 'a\.b'(.|\n)*do:  .*rename"):
        ModuleTree.from_model(model)


def test_case_87_work_is_linear_in_the_number_of_modules() -> None:
    def calls(num_modules: int) -> int:
        with torch.device("meta"):
            model = nn.ModuleList(nn.Sequential(*(nn.ReLU() for _ in range(50))) for _ in range(num_modules // 50))
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            ModuleTree.from_model(model)
        finally:
            sys.setprofile(None)
        return counted

    assert calls(10_000) < 11 * calls(1_000)  # quadratic would be 100 times
