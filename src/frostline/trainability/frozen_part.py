"""The part of a model that must not move: what belongs to it, and whether it is still bit for bit as it was.

A look costs one pass near the speed of memory, on the device. torch's counters of writes would be cheaper, but they
miss writes through `.data` and what fused kernels do to statistics. Knows plans and models; raises nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from frostline.trainability.mode import held_roots
from frostline.tree import ModuleTree, canonical_named_parameters, tensor_checksums

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_SCHEME = "sum64"  # names how the digest is made, so that a later way is not taken for other bits


class FrozenPart:
    """The frozen parameters of `model`, and the persistent buffers of wholly frozen subtrees, as they are now.

    Attributes:
        digest: digest of the frozen parameters' paths and bits; another process that loads the same has the same.
    """

    def __init__(self, model: nn.Module, plan: TrainabilityPlan) -> None:
        self._model, self._plan = model, plan
        still = self._tensors()
        self._names, self._sums = list(still), tensor_checksums(still)  # on the meta device nothing has a sum
        self._buffers = {name for name, tensor in still.items() if not isinstance(tensor, nn.Parameter)}
        # Parameters alone: a buffer may be computed anew at each start, with other rounding on another machine.
        lines = sorted(f"{name}\t{value}" for name, value in self._sums.items() if name not in self._buffers)
        self.digest = f"{_SCHEME}:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def __str__(self) -> str:
        num_params = len(self._names) - len(self._buffers)
        return f"{num_params} tensors" + (f" and {len(self._buffers)} buffers" if self._buffers else "")

    def changed(self) -> list[str]:
        """Names of what is not bit for bit as it was."""
        still = self._tensors()
        sums = tensor_checksums(still)
        return [name for name in self._names if name not in still or sums.get(name) != self._sums.get(name)]

    def _tensors(self) -> Mapping[str, Tensor]:
        """What must not move, read afresh: code that replaces a tensor is as wrong as code that writes into it."""
        params = dict(canonical_named_parameters(self._model, unique=True))
        frozen = {path: params[path] for path in self._plan.frozen if path in params}
        return {**frozen, **_frozen_buffers(self._model, self._plan)}


def _frozen_buffers(model: nn.Module, plan: TrainabilityPlan) -> dict[str, Tensor]:
    """Persistent buffers inside wholly frozen subtrees; none where `frozen_mode: train` lets them move."""
    tree = ModuleTree.from_model(model)
    roots = [tree.module_index[path] for path in held_roots(plan) if path in tree.module_index]
    inside = {index for root in roots for index in range(root, tree.modules[root].end)}
    return {ref.path: ref.tensor for ref in tree.buffers if ref.persistent and ref.owner in inside}
