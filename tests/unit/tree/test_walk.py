"""Canonical paths: what a wrapper adds to names is left out, everything else stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from frostline.errors import ModelError
from frostline.tree import (
    ModuleTree,
    canonical_named_buffers,
    canonical_named_modules,
    canonical_named_parameters,
    join_path,
    unwrap,
    wrapped_child,
)


class Tower(nn.Module):
    """Has a child that is honestly called `module`, and one called as a wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self._orig_mod = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(self.module(x))


class OnlyChild(nn.Module):
    """An ordinary module whose only child has the name that activation checkpointing uses."""

    def __init__(self) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = nn.Linear(2, 2)


def paths(model: nn.Module) -> list[str]:
    return [path for path, _ in canonical_named_parameters(model)]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("prefix", "name", "joined"), [("", "a", "a"), ("a", "", "a"), ("a", "b.c", "a.b.c")])
def test_join_path(prefix: str, name: str, joined: str) -> None:
    assert join_path(prefix, name) == joined


def test_an_unwrapped_model_has_the_names_of_torch() -> None:
    model = nn.Sequential(Tower(), nn.ModuleList([Tower()]))
    assert dict(canonical_named_modules(model)) == dict(model.named_modules())
    assert dict(canonical_named_parameters(model)) == dict(model.named_parameters())
    assert dict(canonical_named_buffers(model)) == dict(model.named_buffers())


def test_a_child_honestly_called_module_keeps_its_name() -> None:
    assert wrapped_child(Tower()) is None
    assert wrapped_child(OnlyChild()) is None
    assert paths(Tower())[:2] == ["module.weight", "module.bias"]
    assert paths(OnlyChild())[0] == "_checkpoint_wrapped_module.weight"


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_case_01_case_88_names_inside_wrappers_are_those_of_the_bare_model(process_group: None) -> None:
    bare = nn.Sequential(Tower(), nn.Linear(3, 2))
    wanted = paths(bare)
    compiled = torch.compile(bare)
    assert isinstance(compiled, nn.Module)
    assert paths(compiled) == wanted
    assert paths(DistributedDataParallel(bare)) == wanted
    assert paths(torch.compile(DistributedDataParallel(bare))) == wanted  # type: ignore[arg-type]
    assert unwrap(torch.compile(DistributedDataParallel(bare))) is bare  # type: ignore[arg-type]
    bare[0] = checkpoint_wrapper(bare[0], checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    assert paths(bare) == wanted
    assert paths(DistributedDataParallel(bare)) == wanted
    tree = ModuleTree.from_model(DistributedDataParallel(bare))
    assert [ref.path for ref in tree.modules] == ["", "0", "0.module", "0._orig_mod", "1"]


def test_a_class_declares_itself_a_wrapper() -> None:
    class Box(nn.Module):
        frostline_wrapped_child = "inner"

        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.inner = inner

    assert paths(Box(nn.Linear(1, 1))) == ["weight", "bias"]
    assert wrapped_child(Box(None)) is None


def test_tied_parameters_come_under_every_name_or_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert paths(model) == ["a.weight", "b.weight"]
    assert [path for path, _ in canonical_named_parameters(model, unique=True)] == ["a.weight"]


def test_buffers_come_once_and_persistent_ones_can_be_chosen() -> None:
    model = nn.Module()
    model.register_buffer("kept", torch.zeros(1))
    model.register_buffer("dropped", torch.zeros(1), persistent=False)
    model.register_buffer("again", model.kept)
    model.register_buffer("absent", None)
    assert [path for path, _ in canonical_named_buffers(model)] == ["kept", "dropped"]
    assert [path for path, _ in canonical_named_buffers(model, persistent_only=True)] == ["kept"]


def test_a_module_that_contains_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].add_module("parent", model)
    with pytest.raises(ModelError, match=r"module '0\.parent' \(Sequential\) contains itself"):
        list(canonical_named_modules(model))


def test_a_shared_module_is_no_cycle() -> None:
    shared = nn.Linear(1, 1)
    model = nn.Sequential(shared, nn.Sequential(shared))
    assert [path for path, _ in canonical_named_modules(model)] == ["", "0", "1", "1.0"]
