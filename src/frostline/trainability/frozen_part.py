"""The part of a model that must not move: what belongs to it, and whether it is still bit for bit as it was.

Three looks, by what they cost: at tensors written to since (nothing but buffers is read), by checksum (one pass at the
speed of memory, on the device), by digest (one pass of hashing on the host). Knows plans and models; raises nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from frostline.tree import ModuleTree, canonical_named_parameters, local_parts, tensor_checksum, tensor_digest

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


class FrozenPart:
    """The frozen parameters of `model`, and the persistent buffers of wholly frozen subtrees, as they are now.

    Attributes:
        digest: hex digest of the frozen parameters' paths and bits; another process that loads the same has the same.
    """

    def __init__(self, model: nn.Module, plan: TrainabilityPlan) -> None:
        self._model, self._plan = model, plan
        still = self._tensors()
        self._bits = {name: tensor_digest(tensor) for name, tensor in still.items()}
        self._sums = _checksums(still)
        # Taken here and not before the step: a forward pass moves normalization statistics too.
        self._versions = {name: (tensor, _writes(tensor)) for name, tensor in still.items()}
        # Parameters alone: a buffer may be computed anew at each start, with other rounding on another machine.
        lines = sorted(f"{path}\t{self._bits[path]}" for path in plan.frozen if path in self._bits)
        self.digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def __str__(self) -> str:
        num_params = len(self._plan.frozen)
        num_buffers = len(self._bits) - num_params
        return f"{num_params} tensors" + (f" and {num_buffers} buffers" if num_buffers else "")

    def written(self) -> list[str]:
        """Names of what was written to and changed since, as far as torch counts writes."""
        still = self._tensors()
        # The counter of writes spares reading every frozen weight. It also counts writes of equal values, which are no
        # fault, and misses what fused kernels do to statistics: buffers, which are small, are read in any case.
        touched = [
            name
            for name, (tensor, version) in self._versions.items()
            if still.get(name) is not tensor or _writes(tensor) != version or not isinstance(tensor, nn.Parameter)
        ]
        return [name for name in touched if name not in still or tensor_digest(still[name]) != self._bits[name]]

    def changed_by_checksum(self) -> list[str]:
        """Names of what has changed since; misses a change that leaves the sum of all bits' words as it was."""
        sums = _checksums(self._tensors())
        return [name for name, value in self._sums.items() if sums.get(name) != value]

    def changed(self) -> list[str]:
        """Names of what is not bit for bit as it was."""
        still = self._tensors()
        return [name for name, bits in self._bits.items() if name not in still or tensor_digest(still[name]) != bits]

    def _tensors(self) -> Mapping[str, Tensor]:
        """What must not move, read afresh: code that replaces a tensor is as wrong as code that writes into it."""
        params = dict(canonical_named_parameters(self._model, unique=True))
        frozen = {path: params[path] for path in self._plan.frozen if path in params}
        return {**frozen, **_frozen_buffers(self._model, self._plan)}


def _writes(tensor: Tensor) -> list[int]:
    """How often torch has counted a write, to a sharded tensor and to the shard inside it."""
    return [tensor._version, *(part._version for part in local_parts(tensor))]


def _frozen_buffers(model: nn.Module, plan: TrainabilityPlan) -> dict[str, Tensor]:
    """Persistent buffers inside wholly frozen subtrees; none where `frozen_mode: train` lets them move."""
    if plan.frozen_mode != "eval":
        return {}
    tree = ModuleTree.from_model(model)
    roots = [tree.module_index[path] for path in plan.frozen_roots if path in tree.module_index]
    inside = {index for root in roots for index in range(root, tree.modules[root].end)}
    return {ref.path: ref.tensor for ref in tree.buffers if ref.persistent and ref.owner in inside}


def _checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type != "meta":  # has no bits
            by_device.setdefault(tensor.device, {})[name] = tensor_checksum(tensor)
    found: dict[str, int] = {}
    for sums in by_device.values():  # one transfer to the host for each device, instead of one for each tensor
        found.update(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
    return found
