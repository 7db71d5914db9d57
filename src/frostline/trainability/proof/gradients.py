"""Whether a gradient arrives at everything that trains: in the first step, and for what is zero there, some steps more.

The gradient of `lora_A` is exactly zero while `lora_B` is, and so is that of a module behind a gate that starts shut.
Conditional tensors are not its business.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import Problem, TrainingError
from frostline.trainability.agreement import Agreement
from frostline.trainability.proof.largest import largest
from frostline.trainability.proof.trained_modules import group_by_module
from frostline.tree import TRAINED_ROWS

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

MAX_ORDINARY_WEIGHT = 1e6
MAX_WATCHED_STEPS = 3  # a gradient that is exactly zero for so many steps is dead
_MAX_NAMES = 8
_MISSING = -1.0


class GradientWatch:
    """Follows `paths` until each has had a gradient other than zero.

    Attributes:
        pending: paths whose gradient was exactly zero in each step so far.
        remarks: what was seen and is not an error.
    """

    def __init__(
        self, params: Mapping[str, nn.Parameter], plan: TrainabilityPlan, paths: Sequence[str], agreement: Agreement
    ) -> None:
        self._params, self._plan, self._agreement = params, plan, agreement
        self._followed = list(paths)
        self.pending = list(paths)
        self.remarks: list[str] = []

    def look(self, step: int) -> None:
        """Check the gradients of what is pending. Call after backward.

        Raises:
            TrainingError: a tensor has no gradient or one that is not finite.
        """
        sizes = self._sizes(self.pending)
        missing = [path for path, value in sizes.items() if value == _MISSING]
        if missing:
            raise TrainingError.from_problems([no_gradient(missing, step)])
        infinite = [path for path, value in sizes.items() if not math.isfinite(value)]
        if infinite:
            raise TrainingError(
                f"the gradient of {shorten_names(infinite)} is not finite at step {step}",
                where="the first training step",
                possible="finite gradients",
                fix="lower the learning rate, or use precision: fp32",
            )
        self.pending = [path for path, value in sizes.items() if value == 0.0]

    def _sizes(self, paths: Sequence[str]) -> dict[str, float]:
        """Largest magnitudes over all processes: infinite for NaN, `_MISSING` where no process has a gradient."""
        known = largest({path: grad for path in paths if (grad := self._params[path].grad) is not None})
        values: list[float] = []
        for path in paths:
            param = self._params[path]
            # No elements: nothing that could be zero; but of a distributed tensor another process may hold some.
            value = known.get(path, 0.0 if param.numel() else 1.0) if param.grad is not None else _MISSING
            values.append(value if math.isfinite(value) else math.inf)
        return dict(zip(paths, self._agreement.largest(values), strict=True))

    def give_up(self) -> None:
        """Judge what is still zero after `MAX_WATCHED_STEPS` steps; what is no error becomes a remark.

        Raises:
            TrainingError: an adapter, or all that trains in a module, has no effect on the loss.
        """
        zero, self.pending = self.pending, []
        adapters = [path for path in zero if self._plan.decisions[path].kind == "adapter"]
        modules = group_by_module(self._followed, self._plan)
        dead = [module for module, paths in modules.items() if set(paths) <= set(zero) and not _may_be_flat(paths)]
        if adapters or dead:
            self._require_ordinary_weights()
        if adapters:
            raise TrainingError.from_problems([_dead_adapters(adapters)])
        if dead:
            raise TrainingError.from_problems([_dead_modules(dead, modules)])
        self.remarks.append(f"gradient exactly zero in the first {MAX_WATCHED_STEPS} steps: {shorten_names(zero)}")

    def _require_ordinary_weights(self) -> None:
        """Where weights have exploded, softmax and tanh give no gradient back, and the modules are not to blame."""
        known = largest({path: self._params[path] for path in self._plan.trainable if path in self._params})
        paths = [path for path in self._plan.trainable if path in self._params]
        values = [value if math.isfinite(value := known.get(path, 0.0)) else math.inf for path in paths]
        sizes = dict(zip(paths, self._agreement.largest(values), strict=True))
        path = max(sizes, key=lambda name: sizes[name])
        if sizes[path] > MAX_ORDINARY_WEIGHT:
            raise TrainingError(
                f"the weights have grown to {sizes[path]:.0e} ({path}), so that no gradient comes back any more",
                where="the first training steps",
                possible=f"weights up to {MAX_ORDINARY_WEIGHT:.0e}",
                fix="lower the learning rate (`optimizer.lr`, or that of the parameter group)",
            )


def no_gradient(missing: Sequence[str], step: int) -> Problem:
    """The fault of trained tensors that the backward pass did not reach."""
    return Problem(
        f"{len(missing)} trained tensors got no gradient at step {step}: {shorten_names(missing)}",
        "the first training step",
        "tensors that take part in the loss",
        f"freeze what the loss does not use:\n{freeze_block(missing)}\n"
        f"or, if other batches reach it (an expert, the branch of a modality), tag it:\n{conditional_block(missing)}",
    )


def no_gradient_in_an_epoch(paths: Sequence[str], done: int) -> Problem:
    """The fault of conditional tensors that no batch of a whole epoch reached."""
    rows = [path for path in paths if path.rpartition(".")[2] == TRAINED_ROWS]
    others = [path for path in paths if path not in rows]
    advice: list[str] = []
    if others:
        advice.append(
            f"freeze what no batch reaches:\n{freeze_block(others)}\n"
            "or give it data (a modality that the examples lack, a router that never chooses it)"
        )
    if rows:
        advice.append(
            f"remove the entry with `rows` that gives {shorten_names(rows)}, name rows that the data uses, or add such "
            "data"
        )
    count = f"{len(paths)} conditional tensor{'s' if len(paths) > 1 else ''}"
    return Problem(
        f"{count} got no gradient in {done} steps, which is a whole epoch: {shorten_names(paths)}",
        "the end of the first epoch",
        "that each of them has a gradient in some step of an epoch",
        "\n".join(advice),
    )


def freeze_block(paths: Sequence[str]) -> str:
    """YAML that freezes `paths`, ready to paste."""
    return _block("freeze_modules", paths, "")


def conditional_block(paths: Sequence[str]) -> str:
    """YAML that lets `paths` be without a gradient in single steps, ready to paste."""
    return _block("unfreeze_modules", paths, ", conditional: true")


def _block(key: str, paths: Sequence[str], tag: str) -> str:
    entries = [f'    - {{param: "{path}"{tag}}}' for path in paths[:_MAX_NAMES]]
    more = [f"    # and {len(paths) - _MAX_NAMES} more"] if len(paths) > _MAX_NAMES else []
    return "\n".join(["freeze_config:", f"  {key}:", *entries, *more])


def _may_be_flat(paths: Collection[str]) -> bool:
    """Whether only biases train: one before a softmax over it, as of attention's keys, cannot change the result."""
    return all(path.rpartition(".")[2] == "bias" for path in paths)


def _dead_adapters(paths: Sequence[str]) -> Problem:
    return Problem(
        f"the gradient of {shorten_names(paths)} stayed exactly zero for {MAX_WATCHED_STEPS} steps",
        "the first training steps",
        "adapters whose output reaches the loss",
        "take the module out of target_modules, or find out why its output is not used; where other batches use it:\n"
        + conditional_block(paths),
    )


def _dead_modules(dead: Sequence[str], modules: Mapping[str, Sequence[str]]) -> Problem:
    paths = [path for module in dead for path in modules[module]]
    return Problem(
        f"the gradient of all that trains in {shorten_names(dead)} was exactly zero in each of the first "
        f"{MAX_WATCHED_STEPS} steps",
        "the first training steps",
        "modules whose output reaches the loss",
        "freeze what has no effect on the loss (or take it out of unfreeze_modules):\n"
        f"{freeze_block(paths)}\n"
        f"or, where other batches reach it, as a branch seldom taken, tag it:\n{conditional_block(paths)}",
    )
