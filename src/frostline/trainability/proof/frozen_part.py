"""The part of a model that must not move: what belongs to it, and whether it is still bit for bit as it was.

A look costs one pass near the speed of memory, on the device. torch's counters of writes would be cheaper, but they
miss writes through `.data` and what fused kernels do to statistics. Knows plans and models; raises nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from frostline.tree import ModuleTree, canonical_named_parameters, local_parts, tensor_checksums

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_SCHEME = "sum64"  # names how the digest is made, so that a later way is not taken for other bits


class FrozenPart:
    """The frozen parameters of `model`, and the persistent buffers of wholly frozen subtrees, as they are now.

    Args:
        before: of the phase before, found unchanged: what was frozen then already is compared with its bits of then.

    Attributes:
        digest: of the paths and bits of the parameters that never train, in whichever phase; another process that loads
            the same has the same.
    """

    def __init__(self, model: nn.Module, plan: TrainabilityPlan, before: FrozenPart | None = None) -> None:
        self._model, self._plan = model, plan
        still = self._tensors()
        known = before._sums if before is not None else {}
        fresh = tensor_checksums({name: tensor for name, tensor in still.items() if name not in known})
        # On the meta device nothing has a sum.
        self._names = list(still)
        self._sums = {name: fresh.get(name, known.get(name)) for name in still if name in fresh or name in known}
        self._buffers = {name for name, tensor in still.items() if not isinstance(tensor, nn.Parameter)}
        # Parameters alone: a buffer may be computed anew at each start, with other rounding on another machine.
        lines = sorted(f"{path}\t{self._sums[path]}" for path in plan.never_trained if path in self._sums)
        self.digest = f"{_SCHEME}:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def describe(self) -> str:
        """What is bit-identical to what, if nothing has changed."""
        plan = self._plan
        settled = {path for path in plan.frozen if plan.has_trained(path)}  # then frozen by a phase
        moved = {name for name in self._buffers if not _is_below(name, plan.untouched_roots)}
        num_params, num_buffers = len(self._names) - len(self._buffers), len(self._buffers)
        text = f"{_count(num_params - len(settled), num_buffers - len(moved))} bit-identical to what was loaded"
        if settled or moved:
            text += f", {_count(len(settled), len(moved))} to what they were when a phase froze them"
        return text

    def changed(self) -> list[str]:
        """Names of what is not bit for bit as it was."""
        still = self._tensors()
        sums = tensor_checksums(still)
        return [name for name in self._names if name not in still or sums.get(name) != self._sums.get(name)]

    def _tensors(self) -> Mapping[str, Tensor]:
        """What must not move, read afresh: code that replaces a tensor is as wrong as code that writes into it."""
        params = dict(canonical_named_parameters(self._model, unique=True))
        frozen = {path: params[path] for path in self._plan.frozen if path in params}
        return {**frozen, **_frozen_buffers(self._model, self._plan, params)}


def _frozen_buffers(model: nn.Module, plan: TrainabilityPlan, params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Persistent buffers inside the subtrees that are held still; none where `frozen_mode: train` lets them move.

    A buffer that shows the memory of a trained parameter moves with it, as planned.
    """
    tree = ModuleTree.from_model(model)
    roots = [tree.module_index[path] for path in plan.frozen_roots if path in tree.module_index]
    inside = {index for root in roots for index in range(root, tree.modules[root].end)}
    buffers = {ref.path: ref.tensor for ref in tree.buffers if ref.persistent and ref.owner in inside}
    if not buffers:
        return {}
    moving = {place for path in plan.trainable if path in params for place in _memory_of(params[path])}
    return {path: tensor for path, tensor in buffers.items() if moving.isdisjoint(_memory_of(tensor))}


def _memory_of(tensor: Tensor) -> list[tuple[str, int]]:
    """Where the numbers of `tensor` begin, by device; nothing for the meta device, or for no elements."""
    storages = [part.untyped_storage() for part in local_parts(tensor) if part.device.type != "meta" and part.numel()]
    return [(str(storage.device), storage.data_ptr()) for storage in storages]


def _is_below(name: str, roots: Iterable[str]) -> bool:
    return any(not root or name.startswith(f"{root}.") for root in roots)


def _count(num_params: int, num_buffers: int) -> str:
    return f"{num_params} tensors" + (f" and {num_buffers} buffers" if num_buffers else "")
