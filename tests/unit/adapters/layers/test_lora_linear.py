from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline.adapters import LoRA, inject
from frostline.adapters.layers.lora_linear import initial_down
from frostline.errors import AdapterError


class Own(nn.Linear):
    """A subclass with a forward of its own, which takes one more argument."""

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return super().forward(x) + shift


def adapted(kind: type[nn.Linear] = nn.Linear, dtype: torch.dtype = torch.float32, **method: Any) -> Any:
    torch.manual_seed(0)
    model = nn.ModuleDict({"proj": kind(6, 4).to(dtype)})
    inject(model, LoRA(**{"rank": 3, **method}))
    layer: Any = model["proj"]
    layer.weight.requires_grad_(False)
    layer.bias.requires_grad_(False)
    nn.init.normal_(layer.lora_B["default"].weight)
    return layer


def reference(layer: Any, x: Tensor) -> Tensor:
    down, up = (layer.frostline_factor(letter, "default") for letter in "AB")
    return x @ layer.weight.t() + layer.bias + (x @ down.t() @ up.t()) * layer.frostline_settings["default"].scaling


@pytest.mark.parametrize("kind", [nn.Linear, Own])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 5, 6), (2, 3, 5, 6), (0, 6), (2, 0, 6)])
def test_every_shape_of_input(kind: type[nn.Linear], shape: tuple[int, ...]) -> None:
    layer, x = adapted(kind, torch.float64), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(layer(x), reference(layer, x))


@pytest.mark.parametrize("kind", [nn.Linear, Own])
@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("view", ["transposed", "expanded", "strided"])
def test_inputs_that_are_not_contiguous(kind: type[nn.Linear], needs_grad: bool, view: str) -> None:
    layer = adapted(kind, torch.float64)
    raw = torch.randn(5, 2, 12, dtype=torch.float64)
    views = {
        "transposed": raw[..., :6].transpose(0, 1),
        "expanded": raw[:1, :1, :6].expand(4, 3, 6),
        "strided": raw[..., ::2],
    }
    x = views[view].detach().requires_grad_(needs_grad)
    results = []
    for forward in (layer, lambda x: reference(layer, x)):
        layer.zero_grad()
        x.grad = None
        forward(x).pow(2).sum().backward()
        results.append(
            [p.grad.clone() for p in layer.parameters() if p.requires_grad] + ([x.grad] if needs_grad else [])
        )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_input_is_never_written_to() -> None:
    layer, x = adapted(), torch.randn(3, 6)
    before = x.clone()
    layer(x)
    assert torch.equal(x, before)


def test_second_derivatives_work() -> None:
    layer = adapted(dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_arguments_beyond_the_input_reach_the_base() -> None:
    layer, x = adapted(Own), torch.randn(3, 6)
    torch.testing.assert_close(layer(x, shift=2.0), reference(layer, x) + 2)
    torch.testing.assert_close(layer(x, 2.0), reference(layer, x) + 2)


def test_a_linear_that_returns_a_tuple_is_refused_when_it_runs() -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.bias

    with pytest.raises(AdapterError, match=r"Pair.forward returns tuple(.|\n)*exclude_modules"):
        adapted(Pair)(torch.randn(2, 6))


def test_a_subclass_may_keep_its_output_for_backward() -> None:
    """The update is added beside it: writing into it would spoil the gradient."""

    class Squashed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(super().forward(x))

    layer = adapted(Squashed, torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_hooks_see_the_adapted_output() -> None:
    layer, seen = adapted(), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    out = layer(torch.randn(2, 6))
    assert seen[0] is out


@pytest.mark.parametrize("rank", [1, 4])
def test_dropout_acts_on_the_adapter_s_input_alone(rank: int) -> None:
    layer, x = adapted(rank=rank, dropout=0.5), torch.randn(64, 6)
    torch.manual_seed(1)
    out = layer(x)
    torch.manual_seed(1)
    dropped = nn.functional.dropout(x, 0.5)
    base = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(out, base + dropped @ layer.frostline_delta("default").t())
    layer.eval()
    torch.testing.assert_close(layer(x), reference(layer, x))


@pytest.mark.parametrize("kind", [nn.Linear, Own])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_symbolic_trace_computes_the_same(kind: type[nn.Linear], dtype: torch.dtype) -> None:
    layer, x = adapted(kind, dtype), torch.randn(2, 3, 6, dtype=dtype)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    assert torch.equal(traced(x), layer(x))
    assert torch.equal(traced(x[0]), layer(x[0]))


@contextmanager
def bytes_kept() -> Iterator[dict[int, int]]:
    """Bytes by storage that autograd keeps for backward."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


@pytest.mark.parametrize("x_needs_grad", [True, False])
def test_cases_157_and_158_no_more_is_kept_than_backward_needs(x_needs_grad: bool) -> None:
    layer = adapted()
    x = torch.randn(2, 50, 6, requires_grad=x_needs_grad)
    with bytes_kept() as kept:
        out = layer(x)
    needed = [x.untyped_storage(), *(p.untyped_storage() for p in layer.parameters() if p is not layer.bias)]
    allowed = {storage.data_ptr() for storage in needed}
    rest = [size for pointer, size in kept.items() if pointer not in allowed]
    assert sum(rest) == 100 * 3 * 4  # x @ A.T, [100, rank] in float32
    assert out.untyped_storage().data_ptr() not in kept


def test_initial_values_are_those_of_the_reference() -> None:
    drawn = initial_down(64, 400, path="a.b", seed=0, dtype=torch.float32)
    assert drawn.abs().max() <= 1 / 20  # kaiming_uniform with a = sqrt(5): +-1/sqrt(in_features)
    assert drawn.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert drawn.mean().item() == pytest.approx(0, abs=1e-3)
    assert torch.equal(initial_down(64, 400, path="a.b", seed=0, dtype=torch.bfloat16), drawn.bfloat16())
    assert not torch.equal(initial_down(64, 400, path="a.c", seed=0, dtype=torch.float32), drawn)
    assert not torch.equal(initial_down(64, 400, path="a.b", seed=1, dtype=torch.float32), drawn)
