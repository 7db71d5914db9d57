"""Whether what trains moves: looked at after the first step, and later only at what has not moved yet.

A step that is smaller than the spacing of the numbers that it is added to changes nothing. That is so in the first
steps of a long warm-up, and no fault: judged is a module whose step could be seen, or never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from frostline.trainability.agreement import Agreement
from frostline.trainability.proof.largest import largest
from frostline.tree import local_parts, tensor_checksums

_CLEARLY = 4.0  # spacings: a step this large is seen whatever is rounded
_HALF_OF_THE_SMALLER = 0.25  # below a power of two numbers lie twice as close, and half a spacing rounds up

Rates = Callable[[str], tuple[float, float | None]]
"""Of the path of a trained tensor: its learning rate in this step, and the largest that it will have if known."""


class MovementWatch:
    """Follows modules until each has moved.

    Args:
        params: the trained tensors by path.
        agreement: the processes that hold parts or replicas; what moved in one of them has moved.
    """

    def __init__(self, params: Mapping[str, Tensor], agreement: Agreement) -> None:
        self._params, self._agreement = params, agreement
        self._still: dict[str, list[str]] = {}
        self._sums: dict[str, int] = {}

    def follow(self, modules: Mapping[str, Sequence[str]]) -> None:
        """Follow `modules` (name -> paths of its tensors) from now on, before the optimizer's step."""
        for module, every in modules.items():
            paths = [path for path in every if self._params[path].numel()]  # of the whole tensor: no element, no move
            if not paths:
                continue
            self._still.setdefault(module, []).extend(paths)
            self._sums.update(tensor_checksums({path: self._params[path] for path in paths}))

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
        if not self._still:
            return []
        modules = list(self._still)
        # A process may hold but a part: a module's step is seen if any process sees it.
        seen = self._agreement.largest([float(self._is_visible_in(self._still[name], rates)) for name in modules])
        later = self._agreement.largest([float(self._may_be_visible_in(self._still[name], rates)) for name in modules])
        return [name for name, now, ever in zip(modules, seen, later, strict=True) if now or not ever]

    def look(self) -> None:
        """Forget the modules that have moved."""
        modules = list(self._still)
        sums = tensor_checksums({path: self._params[path] for paths in self._still.values() for path in paths})
        moved = [float(any(sums.get(path) != self._sums.get(path) for path in self._still[name])) for name in modules]
        for module, value in zip(modules, self._agreement.largest(moved), strict=True):
            if value:
                del self._still[module]

    def _is_visible_in(self, paths: Collection[str], rates: Rates) -> bool:
        return any(self._is_visible(path, rates(path)[0]) for path in paths)

    def _may_be_visible_in(self, paths: Collection[str], rates: Rates) -> bool:
        return any(self._may_become_visible(path, rates(path)[1]) for path in paths)

    def _is_visible(self, path: str, lr: float) -> bool:
        """Whether a step of this rate is seen, be it `lr` (Adam and its kin) or `lr` times the gradient (SGD)."""
        param, grad = self._params[path], self._params[path].grad
        (own,) = local_parts(param)
        if grad is None or not own.numel():
            return False
        step = lr * min(1.0, largest({path: grad})[path])
        return step > _CLEARLY * torch.finfo(param.dtype).eps * float(own.abs().max())

    def _may_become_visible(self, path: str, peak: float | None) -> bool:
        (own,) = local_parts(self._params[path])
        if peak is None or not own.numel():
            return True
        return peak > _HALF_OF_THE_SMALLER * torch.finfo(own.dtype).eps * float(own.abs().min())


def rates_of(optimizer: torch.optim.Optimizer | None) -> dict[int, tuple[float, float | None]]:
    """Learning rate now, and at most where that is known, by id of the parameter."""
    rates: dict[int, tuple[float, float | None]] = {}
    for group in optimizer.param_groups if optimizer is not None else ():
        peak = group.get("max_lr", group.get("initial_lr"))
        own = float(group["lr"]), None if peak is None else float(peak)
        rates.update((id(param), own) for param in group["params"])
    return rates
