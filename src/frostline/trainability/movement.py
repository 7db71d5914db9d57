"""Whether what trains moves: looked at after the first step, and later only at what has not moved yet.

A step that is smaller than the spacing of the numbers that it is added to changes nothing. That is so in the first
steps of a long warm-up, and no fault: judged is a module whose step could be seen, or never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from frostline.tree import tensor_digest

_CLEARLY = 4.0  # spacings: a step this large is seen whatever is rounded
_HALF_OF_THE_SMALLER = 0.25  # below a power of two numbers lie twice as close, and half a spacing rounds up

Rates = Callable[[str], tuple[float, float | None]]
"""Of the path of a trained tensor: its learning rate in this step, and the largest that it will have if known."""


class MovementWatch:
    """Follows modules from before the first step until each has moved.

    Args:
        params: the trained tensors by path.
        modules: paths of the tensors that count for a module.
    """

    def __init__(self, params: Mapping[str, Tensor], modules: Mapping[str, Sequence[str]]) -> None:
        self._params = params
        self._still = {
            module: {path: tensor_digest(params[path]) for path in paths} for module, paths in modules.items()
        }

    @property
    def still(self) -> list[str]:
        """Modules that had not moved when last looked at."""
        return list(self._still)

    @staticmethod
    def is_due(num_steps: int) -> bool:
        """Whether to look after so many steps: 1, 2, 4, 8, ..., so that what never moves costs next to nothing."""
        return num_steps & (num_steps - 1) == 0

    def find_dead(self, rates: Rates, excused: Collection[str] = ()) -> list[str]:
        """Modules that should have moved by now and have not. Call while the gradients of the step are there.

        Args:
            excused: modules that need not be followed any further.
        """
        self.look()
        for module in excused:
            self._still.pop(module, None)
        return [module for module, paths in self._still.items() if self._should_have_moved(paths, rates)]

    def look(self) -> None:
        """Forget the modules that have moved."""
        self._still = {
            module: bits
            for module, bits in self._still.items()
            if all(tensor_digest(self._params[path]) == digest for path, digest in bits.items())
        }

    def _should_have_moved(self, paths: Collection[str], rates: Rates) -> bool:
        return any(self._is_visible(path, rates(path)[0]) for path in paths) or not any(
            self._may_become_visible(path, rates(path)[1]) for path in paths
        )

    def _is_visible(self, path: str, lr: float) -> bool:
        """Whether a step of this rate is seen, be it `lr` (Adam and its kin) or `lr` times the gradient (SGD)."""
        param = self._params[path]
        if param.grad is None or not param.numel():
            return False
        step = lr * min(1.0, largest({path: param.grad})[path])
        return step > _CLEARLY * torch.finfo(param.dtype).eps * float(param.detach().abs().max())

    def _may_become_visible(self, path: str, peak: float | None) -> bool:
        param = self._params[path]
        if peak is None or not param.numel():
            return True
        return peak > _HALF_OF_THE_SMALLER * torch.finfo(param.dtype).eps * float(param.detach().abs().min())


def largest(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest magnitude in each tensor; those without elements are left out."""
    batches: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        values = tensor.detach()
        values = values.coalesce().values() if values.is_sparse else values
        if tensor.numel():
            top = values.abs().max() if values.numel() else values.new_zeros(())
            top = top.to(torch.promote_types(top.dtype, torch.float32))
            batches.setdefault((top.device, top.dtype), {})[path] = top
    found: dict[str, float] = {}
    for batch in batches.values():  # one transfer to the host for each, instead of one for each tensor
        found.update(zip(batch, torch.stack(list(batch.values())).tolist(), strict=True))
    return {path: found[path] for path in tensors if path in found}


def rates_of(optimizer: torch.optim.Optimizer | None) -> dict[int, tuple[float, float | None]]:
    """Learning rate now, and at most where that is known, by id of the parameter."""
    rates: dict[int, tuple[float, float | None]] = {}
    for group in optimizer.param_groups if optimizer is not None else ():
        peak = group.get("max_lr", group.get("initial_lr"))
        own = float(group["lr"]), None if peak is None else float(peak)
        rates.update((id(param), own) for param in group["params"])
    return rates
