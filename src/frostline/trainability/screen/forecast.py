"""How many bytes of weights, gradients and optimizer state one device will hold, before anything is loaded.

Arithmetic on the plan: what FSDP2 and tensor parallelism do to a shape is written down here and compared with real
process groups in the tests. Activations, buffers and the communication of the moment are not in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from frostline.errors import ConfigError
from frostline.trainability.screen.tensor_parallel import COLUMN, REPLICATED, ROW, TensorParallel

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


@dataclass(frozen=True)
class Forecast:
    """Bytes on the fullest device of a group.

    Attributes:
        dp_replicate_size, dp_shard_size, tp_size: the group: copies (DDP), shards (FSDP2), tensor parallel.
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
    split = TensorParallel(plan, tp_size, tp_plan)
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
        when = tuple([decision.path in trained for trained in phases])
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
        notes=(*_notes(plan, placements, converted, split), *_refusals(optimizer, dp_shard_size * tp_size)),
    )


def _notes(
    plan: TrainabilityPlan, placements: Mapping[str, str], converted: Mapping[str, str], split: TensorParallel
) -> list[str]:
    found: list[str] = []
    changed = {plan.decisions[path].dtype for path in plan.ever_trained} & converted.keys()
    for name in sorted(changed):
        found.append(
            f"{name} parameters that train are kept in {converted[name]} (master weights), "
            "gradients and optimizer state too"
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


def _refusals(optimizer: str, num_shards: int) -> list[str]:
    """What torch would refuse to run, so that nobody plans with it."""
    if optimizer == "adafactor" and num_shards > 1:  # torch 2.13: an in-place operation on a partial DTensor
        return ["torch's Adafactor does not run on split parameters: take another optimizer, or dp_replicate alone"]
    return []


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
