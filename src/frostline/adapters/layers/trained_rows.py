"""Rows of a table that train, laid over the frozen weight in the forward pass; the table itself is only read.

An embedding looks its rows up in `trained_rows`; a linear (an output head) gets their columns of the output from them.
Nothing of the size of the table is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frostline.adapters.layers.in_place import InPlaceAdapted, adapt_in_place, restore_class
from frostline.tree import TRAINED_ROWS, HoldsTrainedRows

_INDEX = "frostline_index"


class TrainedRows(HoldsTrainedRows, InPlaceAdapted):
    """What embeddings and linears with trained rows have in common.

    Attributes:
        trained_rows: `[num_rows, dim]`; the very same parameter in every module that shares the weight.
        frostline_rows: index along dim 0 of the weight for each of them, sorted.
        frostline_index: the same as a tensor on the device of the weight (a buffer that no state dict holds).
        frostline_settings: empty; there is nothing to set.
    """

    frostline_rows: tuple[int, ...]
    if TYPE_CHECKING:
        trained_rows: nn.Parameter
        frostline_index: Tensor
        weight: Tensor

    @property
    def frostline_laid(self) -> bool:
        """Whether the forward pass has to lay the rows over: they are neither switched off nor merged."""
        return self.frostline_enabled and not self.frostline_merged

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Self:
        """As the base; the indices are made anew, because `to_empty` would leave them without values."""
        moved: Any = cast("Any", super())._apply(fn, recurse)
        _put_index(cast("nn.Module", self))
        return moved

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """As the base; a state dict of the bare model gives the rows the values of its table."""
        told = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        cast("Any", super())._load_from_state_dict(state_dict, prefix, *told)
        if f"{prefix}{TRAINED_ROWS}" not in state_dict and f"{prefix}weight" in state_dict:
            with torch.no_grad():
                self.trained_rows.copy_(self.weight[self.frostline_index])


class EmbeddingRows(TrainedRows, nn.Embedding):
    """An embedding of which some rows train. Shapes: ids `[...]` -> `[..., embedding_dim]`.

    Stands right before `nn.Embedding`, so that what a subclass does with the looked-up vectors (Gemma scales them) is
    done with the trained ones, too. Gradients are dense, also where the table's would be sparse.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The looked-up vectors, those of trained rows from `trained_rows`."""
        out = super().forward(input)
        if not self.frostline_laid:
            return out
        index = self.frostline_index
        ids = input.to(index.dtype).contiguous()
        place = torch.searchsorted(index, ids).clamp_(max=index.numel() - 1)
        is_trained = index[place] == ids
        # A padding row gets no gradient from being looked up, here as in the table.
        padding = None
        if self.padding_idx is not None and self.padding_idx in self.frostline_rows:
            padding = self.frostline_rows.index(self.padding_idx)
        rows = functional.embedding(place, self.trained_rows, padding)
        return torch.where(is_trained.unsqueeze(-1), rows.to(out.dtype), out)


class LinearRows(TrainedRows, nn.Linear):
    """A linear of which some rows of the weight train. Shapes: x `[..., in_features]` -> `[..., out_features]`."""

    def forward(self, input: Tensor) -> Tensor:
        """The output, in the columns of trained rows as their values give it."""
        if not self.frostline_laid:
            return super().forward(input)
        # Two dimensions: only an output that is no view takes the update in place without autograd copying it.
        x = input.reshape(-1, input.shape[-1])
        out = super().forward(x)
        # The difference to the table is added, and not the column replaced: it is exactly zero before training,
        # whatever kernel computes it, and backward needs no copy of the gradient of the whole output.
        change = self.trained_rows - self.weight[self.frostline_index]
        autocast = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
        # Autocast brings all to its own dtype, but for float64, which it leaves alone.
        if not autocast or torch.float64 in (x.dtype, change.dtype):
            change = change.to(x.dtype)
        columns = functional.linear(x, change).to(out.dtype)
        out = out.index_add_(1, self.frostline_index, columns)
        return out.view(input.shape[:-1] + out.shape[-1:])


def rows_mixin(module: nn.Module) -> type[TrainedRows] | None:
    """The mixin for `module`; None where rows of its weight cannot train apart."""
    if isinstance(module, nn.Embedding):
        return EmbeddingRows
    return LinearRows if isinstance(module, nn.Linear) else None


def lay(module: nn.Module, rows: tuple[int, ...], values: nn.Parameter) -> None:
    """Adapt `module` in place so that `values` `[len(rows), dim]` stands for these rows of its weight."""
    mixin = rows_mixin(module)
    assert mixin is not None
    adapt_in_place(module, mixin)
    module.__dict__["frostline_rows"] = rows
    module.register_parameter(TRAINED_ROWS, values)
    _put_index(module)


def lift(module: nn.Module) -> None:
    """Undo `lay`: an ordinary instance of its base class again, the weight as it is."""
    module._parameters.pop(TRAINED_ROWS, None)
    module._buffers.pop(_INDEX, None)
    module._non_persistent_buffers_set.discard(_INDEX)
    module.__dict__.pop("frostline_rows", None)
    restore_class(module)


def _put_index(module: nn.Module) -> None:
    rows, weight = cast("TrainedRows", module).frostline_rows, cast("TrainedRows", module).weight
    module.register_buffer(_INDEX, torch.tensor(rows, device=weight.device), persistent=False)
