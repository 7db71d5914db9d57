"""How many bytes of weights, gradients and optimizer state one device will hold, before anything is loaded.

Arithmetic on the plan: what FSDP2 and tensor parallelism do to a shape is written down here and compared with real
process groups in the tests. Activations, buffers and the communication of the moment are not in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch

from frostline.errors import ConfigError
from frostline.trainability.decision import Decision

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

#: Optimizer -> tensors of the parameter's shape that it keeps for each parameter, and single float32 numbers beside.
STATE_OF_OPTIMIZER: dict[str, tuple[int, int]] = {
    "adamw": (2, 1),
    "adam": (2, 1),
    "nadam": (2, 2),
    "radam": (2, 1),
    "adamax": (2, 1),
    "sgd": (0, 0),
    "rmsprop": (1, 1),
    "adagrad": (1, 1),
    "adadelta": (2, 1),
    "adafactor": (0, 1),  # and factors, see `_state_bytes`
}
_WITH_MOMENTUM = ("sgd", "rmsprop")
# Linear layers whose input is split already, by the last components of their paths: the second half of a pair.
_ROW_PARALLEL = (
    *("o_proj", "out_proj", "down_proj", "c_proj", "dense_4h_to_h", "output.dense"),
    *("fc2", "wo", "w2", "lin2", "out_lin"),
)
COLUMN, ROW, REPLICATED = "column", "row", "replicated"


@dataclass(frozen=True)
class Forecast:
    """Bytes on the fullest device of a group.

    Attributes:
        dp_replicate_size, dp_shard_size, tp_size: the group; data parallel copies (DDP), shards (FSDP2), tensor parallel.
        weights: all parameters, adapters among them; trained ones in the number format that they train in.
        adapters: the part of `weights` that adapters take.
        gradients: of trained parameters.
        optimizer_state: what `optimizer` keeps.
        optimizer: its name in the config.
        placements: path -> how tensor parallelism lays it out: `column`, `row` or `replicated`; empty without it.
        notes: what was assumed.
    """

    dp_replicate_size: int
    dp_shard_size: int
    tp_size: int
    weights: int
    adapters: int
    gradients: int
    optimizer_state: int
    optimizer: str
    placements: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of the whole group."""
        return self.dp_replicate_size * self.dp_shard_size * self.tp_size

    @property
    def total(self) -> int:
        """Weights, gradients and optimizer state together."""
        return self.weights + self.gradients + self.optimizer_state

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON-able data, in bytes."""
        sizes = ("dp_replicate_size", "dp_shard_size", "tp_size")
        counts = ("weights", "adapters", "gradients", "optimizer_state", "total")
        return {
            **{name: getattr(self, name) for name in sizes},
            **{f"{name}_bytes": getattr(self, name) for name in counts},
            "optimizer": self.optimizer,
            "notes": list(self.notes),
        }

    def describe(self, optimizer: str) -> str:
        """`weights 91.2 MB, gradients 0.3 MB, AdamW 0.6 MB`; on several devices with the adapters and the total."""
        parts = {"weights": self.weights, "gradients": self.gradients, optimizer: self.optimizer_state}
        words = {name: f"{name} {count / 1e6:,.1f} MB" for name, count in parts.items()}
        if self.num_devices == 1:
            return ", ".join(words.values())
        if self.adapters:
            words["weights"] += f" (adapters {self.adapters / 1e6:,.1f} MB)"
        kinds = {"DDP": self.dp_replicate_size, "FSDP2": self.dp_shard_size, "TP": self.tp_size}
        group = ", ".join(f"{kind} {size}" for kind, size in kinds.items() if size > 1)
        total = f"{self.total / 1e6:,.1f} MB"
        return f"{', '.join(words.values())}: {total} on each of {self.num_devices} devices ({group})"


def forecast_plan(
    plan: TrainabilityPlan,
    *,
    dp_replicate_size: int = 1,
    dp_shard_size: int = 1,
    tp_size: int = 1,
    optimizer: str = "adamw",
    momentum: float = 0.0,
    trained_as: Mapping[str, str] | None = None,
    tp_plan: Mapping[str, str] | None = None,
) -> Forecast:
    """What the fullest device holds between two steps. See `TrainabilityPlan.forecast`."""
    _require_sizes(dp_replicate_size=dp_replicate_size, dp_shard_size=dp_shard_size, tp_size=tp_size)
    if optimizer not in STATE_OF_OPTIMIZER:
        raise ConfigError(
            f"the state of optimizer {optimizer!r} is not known",
            where="forecast: optimizer",
            possible=", ".join(STATE_OF_OPTIMIZER),
            fix="name one of these, or the nearest",
        )
    split = _TensorParallel(plan, tp_size, tp_plan)
    converted = trained_as or {}
    totals: Counter[str] = Counter()
    placements: dict[str, str] = {}
    alike: Counter[tuple[tuple[int, ...], str, tuple[bool, ...], str, int | None]] = Counter()
    phases = [set(plan.in_phase(index).trainable) for index in range(len(plan.phases) + 1)]
    gradients = [0] * len(phases)
    for decision in plan.decisions.values():
        dim = None
        if tp_size > 1:
            placements[decision.path], dim = split.place(decision)
        when = tuple(decision.path in trained for trained in phases)
        alike[decision.shape, decision.dtype, when, decision.kind, dim] += 1
    for (global_shape, dtype, when, kind, dim), count in alike.items():
        shape = list(global_shape)
        if dim is not None:
            shape[dim] //= tp_size
        if shape:  # FSDP2 splits the first dim into equal shards; the last ones are padded to the size of the first
            shape[0] = -(-shape[0] // dp_shard_size)
        # What a later phase trains is converted, and has its place in the optimizer, from the start.
        itemsize = _itemsize(converted.get(dtype, dtype) if any(when) else dtype)
        num_bytes = math.prod(shape) * itemsize * count
        totals["weights"] += num_bytes
        if kind == "adapter":
            totals["adapters"] += num_bytes
        for phase, trains in enumerate(when):
            gradients[phase] += num_bytes * trains
        if any(when):
            totals["state"] += _state_bytes(optimizer, momentum, shape, itemsize) * count
    return Forecast(
        dp_replicate_size,
        dp_shard_size,
        tp_size,
        weights=totals["weights"],
        adapters=totals["adapters"],
        gradients=max(gradients),
        optimizer_state=totals["state"],
        optimizer=optimizer,
        placements=placements,
        notes=tuple(_notes(plan, placements, converted, split)),
    )


class _TensorParallel:
    """Which dim of a parameter tensor parallelism splits: by the model's own plan, or by the rule of pairs."""

    def __init__(self, plan: TrainabilityPlan, size: int, styles: Mapping[str, str] | None) -> None:
        self.plan, self.size, self.styles = plan, size, styles
        self.types = {row.path: row.type_name for row in plan.modules if not row.is_adapter} if size > 1 else {}
        self.uneven: list[str] = []

    def place(self, decision: Decision) -> tuple[str, int | None]:
        """`column`, `row` or `replicated`, and the dim that is split."""
        if self.size == 1:
            return REPLICATED, None
        path = decision.path.rpartition(".")[0]
        if decision.kind == "adapter":
            while path and path not in self.types:  # up to the module that is adapted
                path = path.rpartition(".")[0]
        base = self.plan.decisions.get(f"{path}.weight" if path else "weight")
        style = self._style(path, base)
        if base is None or style == REPLICATED:
            return REPLICATED, None
        is_table = "Embedding" in self.types.get(path, "")
        # torch: a table is split over its rows by `row`, over its columns by `column`; a linear the other way round.
        split = int((style == ROW) != is_table)
        if base.shape[split] % self.size:
            if decision is base:
                self.uneven.append(path)
            return REPLICATED, None
        dim = self._dim(decision, base, split)
        return (REPLICATED, None) if dim is None else (style, dim)

    def _style(self, path: str, base: Decision | None) -> str:
        if base is None or len(base.shape) != 2:
            return REPLICATED
        if self.styles is not None:
            named = next((style for glob, style in self.styles.items() if fnmatchcase(path, glob)), "")
            return COLUMN if "colwise" in named else ROW if "rowwise" in named else REPLICATED
        kind = self.types.get(path, "")
        if "Embedding" in kind:
            return ROW
        if "Linear" not in kind:
            return REPLICATED
        return ROW if any(path == name or path.endswith(f".{name}") for name in _ROW_PARALLEL) else COLUMN

    @staticmethod
    def _dim(decision: Decision, base: Decision, split: int) -> int | None:
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


def _notes(
    plan: TrainabilityPlan, placements: Mapping[str, str], converted: Mapping[str, str], split: _TensorParallel
) -> list[str]:
    found: list[str] = []
    changed = {plan.decisions[path].dtype for path in plan.trainable} & converted.keys()
    for name in sorted(changed):
        found.append(
            f"{name} parameters that train are kept in {converted[name]} (master weights), gradients and optimizer state too"
        )
    if placements:
        counts = Counter(placements.values())
        source = "the model's own plan" if split.styles is not None else "the rule of pairs"
        found.append(
            f"tensor parallel by {source}: {counts[COLUMN]} parameters split by column, {counts[ROW]} by row, "
            f"{counts[REPLICATED]} whole on every device (norms, biases of row-parallel layers, other shapes)"
        )
    if split.uneven:
        names = ", ".join(split.uneven[:3]) + (f" and {len(split.uneven) - 3} more" if len(split.uneven) > 3 else "")
        found.append(f"not split, since {split.size} does not divide them: {names}")
    return found


def _state_bytes(optimizer: str, momentum: float, shape: list[int], itemsize: int) -> int:
    tensors, scalars = STATE_OF_OPTIMIZER[optimizer]
    if momentum and optimizer in _WITH_MOMENTUM:
        tensors += 1
    numbers = math.prod(shape) * tensors
    if optimizer == "adafactor":  # one number a row and one a column; what has one dim is kept whole
        whole = math.prod(shape)
        numbers = whole if len(shape) < 2 else whole // (shape[-1] or 1) + whole // (shape[-2] or 1)
    return numbers * itemsize + scalars * 4


def _itemsize(dtype: str) -> int:
    found = getattr(torch, dtype)
    assert isinstance(found, torch.dtype)
    return found.itemsize


def _require_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(
                f"{name} cannot be {size}", where=f"forecast: {name}", possible="1, 2, 3, ...", fix="correct the number"
            )
