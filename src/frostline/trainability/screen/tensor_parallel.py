"""Which dim of each parameter tensor parallelism splits: by a model's own plan, or by the rule of pairs.

    column   a linear's weight [out, in] along out, its bias with it; a table [rows, width] along its width
    row      a linear's weight along in, its bias whole; a table along its rows
    replicated   norms, other shapes, and what the number of devices does not divide

Only says where the split is: moves no tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from frostline.trainability.decision import Decision

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

COLUMN, ROW, REPLICATED = "column", "row", "replicated"
# Linear layers whose input is split already, by the last components of their paths: the second of a pair.
_SECOND_OF_PAIR = (
    *("o_proj", "out_proj", "down_proj", "c_proj", "dense_4h_to_h", "output.dense"),
    *("fc2", "wo", "w2", "lin2", "out_lin"),
)
_NUMBER = re.compile(r"\d+")


class TensorParallel:
    """The layout over `size` devices.

    Attributes:
        styles: path with `*` for every number -> `colwise`, `rowwise` or another style, as transformers models carry
            them; None for the rule of pairs.
        uneven: modules that are left whole because `size` does not divide them; grows while `place` is called.
    """

    def __init__(self, plan: TrainabilityPlan, size: int, styles: Mapping[str, str] | None) -> None:
        self.plan, self.size, self.styles = plan, size, styles
        self.types = {row.path: row.type_name for row in plan.modules if not row.is_adapter} if size > 1 else {}
        self.uneven: list[str] = []

    def place(self, decision: Decision) -> tuple[str, int | None]:
        """`column`, `row` or `replicated`, and the dim that is split."""
        if self.size == 1:
            return REPLICATED, None
        style = self._named(decision.path)
        if style is not None and decision.kind != "adapter":  # fused experts [experts, out, in] are named themselves
            split = len(decision.shape) - (1 if style == ROW else 2)
            return self._divided(decision, style, split, decision.path) if split >= 0 else (REPLICATED, None)
        path = decision.path.rpartition(".")[0]
        if decision.kind == "adapter":
            while path and path not in self.types:  # up to the module that is adapted
                path = path.rpartition(".")[0]
        base = self.plan.decisions.get(f"{path}.weight" if path else "weight")
        if base is None or len(base.shape) != 2:
            return REPLICATED, None
        style = self._style(path)
        if style is None:
            return REPLICATED, None
        is_table = "Embedding" in self.types.get(path, "")
        split = int((style == ROW) != is_table)
        if self._divided(base, style, split, path if decision is base else None)[1] is None:
            return REPLICATED, None
        dim = _along(decision, base, split)
        return (REPLICATED, None) if dim is None else (style, dim)

    def _divided(self, decision: Decision, style: str, dim: int, name: str | None) -> tuple[str, int | None]:
        if decision.shape[dim] % self.size == 0:
            return style, dim
        if name is not None:
            self.uneven.append(name)
        return REPLICATED, None

    def _named(self, path: str) -> str | None:
        """What the model's plan says of exactly this path."""
        named = (self.styles or {}).get(_NUMBER.sub("*", path), "")
        return COLUMN if "colwise" in named else ROW if "rowwise" in named else None

    def _style(self, path: str) -> str | None:
        if self.styles is not None:
            return self._named(path)
        kind = self.types.get(path, "")
        if "Embedding" in kind:
            return ROW
        if "Linear" not in kind:
            return None
        return ROW if any(path == name or path.endswith(f".{name}") for name in _SECOND_OF_PAIR) else COLUMN


def _along(decision: Decision, base: Decision, split: int) -> int | None:
    """The dim of `decision` that goes along dim `split` of its module's weight; None if it has none."""
    if decision is base:
        return split
    shape = decision.shape
    if decision.kind != "adapter":
        return 0 if split == 0 and shape == base.shape[:1] else None  # the bias of a row-parallel layer stays whole
    if len(shape) != 2:
        return None
    carries_out, carries_in = shape[0] == base.shape[0], shape[1] == base.shape[1]
    if carries_out and carries_in:  # a square factor: which side it is on cannot be told from its shape
        return None
    return split if (carries_out, carries_in)[split] else None
