"""Proves on the running model that exactly the plan happens (DESIGN section 2, `prove`).

Watches the first steps with a learning rate above zero (what they cannot move, longer), looks at the frozen part before
every save, and compares it bit for bit at the end. Costs hooks for a few steps, a checksum a save, and two passes of
hashing over the frozen tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from frostline.config.wording import shorten_names
from frostline.errors import PlanMismatchError, Problem, TrainingError
from frostline.trainability.frozen_part import FrozenPart
from frostline.trainability.movement import MovementWatch, largest, rates_of
from frostline.trainability.table_reads import TableReads
from frostline.tree import ModuleTree, canonical_named_parameters

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

MAX_ORDINARY_WEIGHT = 1e6
MAX_WATCHED_STEPS = 3  # a gradient that is exactly zero for so many steps is dead
_MAX_NAMES = 8


@dataclass
class Prover:
    """Checks one run. Use in this order:

        prover = Prover(model, plan)                     # before the first step: remembers what is frozen
        prover.before_step(step, lr, optimizer)          # after backward, before the optimizer
        prover.after_step()                              # after the optimizer, before its zero_grad
        prover.evaluation_begin(); prover.evaluation_end()   # around the first evaluation batch
        prover.before_save()                             # before a checkpoint is written while the run goes on
        prover.final_check()                             # at the end, before the last checkpoint: one line for the log

    Attributes:
        watching: whether further steps have to be reported.
        remarks: what was seen and is not an error, such as tensors whose gradient was exactly zero.
    """

    model: nn.Module
    plan: TrainabilityPlan
    watching: bool = True
    remarks: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._params = dict(canonical_named_parameters(self.model, unique=True))
        self._frozen = FrozenPart(self.model, self.plan)
        self._movement: MovementWatch | None = None
        self._rates: tuple[float, torch.optim.Optimizer | None] = (0.0, None)
        self._pending: set[str] | None = None  # trained tensors whose gradient was exactly zero so far
        self._watched_steps = 0
        self._in_step = False
        self._ran: dict[str, set[str]] = {"training": set(), "evaluation": set()}
        self._phase = "training"
        self._hooks: list[RemovableHandle] = []
        self._evaluated = False
        self._hook_adapted()
        self._table_reads = TableReads(self.model)

    # -- the first steps

    def before_step(self, step: int, lr: float, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Check gradients of step `step` (0-based), if it is to be watched. Call after backward, before clipping.

        Args:
            lr: learning rate of the step.
            optimizer: whose groups say their own rates, and under `initial_lr` the largest that they will have.

        Raises:
            TrainingError: a trained tensor has no gradient or one that is not finite; an adapter's forward did not run.
        """
        self._in_step = self.watching and lr > 0
        if not self._in_step:
            return
        if self._watched_steps == 0:
            self._require_forward("training")
            self._table_reads.require_none()
            self._drop_hooks()
            self._movement = MovementWatch(self._params, self._modules())
        self._rates = (lr, optimizer)
        looked_at = self.plan.trainable if self._pending is None else sorted(self._pending)
        missing, infinite, zero = self._sort_gradients(looked_at)
        if missing:
            raise TrainingError.from_problems([_no_gradient(missing, step)])
        if infinite:
            raise TrainingError(
                f"the gradient of {shorten_names(infinite)} is not finite at step {step}",
                where="the first training step",
                possible="finite gradients",
                fix="lower the learning rate, or use precision: fp32",
            )
        self._pending = set(zero)

    def after_step(self) -> None:
        """Check that trained modules moved and frozen tensors did not. Call after the optimizer's step.

        Raises:
            PlanMismatchError: a frozen tensor changed, or a trained module or adapter did not.
        """
        if not self._in_step:
            return
        assert self._pending is not None
        assert self._movement is not None
        if self._watched_steps == 0:
            self._require_still()
        self._watched_steps += 1
        if self._movement.is_due(self._watched_steps):
            self._require_moved(self._movement)
        if self._pending and self._watched_steps >= MAX_WATCHED_STEPS:
            self._judge_dead(sorted(self._pending))
            self._pending = set()
        self.watching = bool(self._pending or self._movement.still)

    def _sort_gradients(self, paths: Any) -> tuple[list[str], list[str], list[str]]:
        missing = [path for path in paths if self._params[path].grad is None]
        sizes = largest({path: grad for path in paths if (grad := self._params[path].grad) is not None})
        infinite = [path for path, value in sizes.items() if not math.isfinite(value)]
        zero = [path for path, value in sizes.items() if value == 0.0]
        return missing, infinite, zero

    def _require_still(self) -> None:
        moved = self._frozen.written()
        if moved:
            raise PlanMismatchError(
                f"frozen tensors changed in the first step: {shorten_names(moved)}",
                where="after the optimizer's step",
                possible="only the plan's trainable parameters move",
                fix="look for code that writes weights itself (moving averages, weight clipping), or thaw them",
            )

    def _require_moved(self, movement: MovementWatch) -> None:
        assert self._pending is not None
        # A module all of whose gradients were exactly zero is judged by the later steps.
        excused = [name for name, paths in self._modules().items() if self._pending.issuperset(paths)]
        rates, lr = rates_of(self._rates[1]), self._rates[0]
        dead = movement.find_dead(lambda path: rates.get(id(self._params[path]), (lr, None)), excused)
        if dead:
            raise PlanMismatchError(
                f"the first steps with a learning rate above zero changed nothing in {shorten_names(dead)}",
                where="after the optimizer's step",
                possible="every trained module moves",
                fix="check the learning rate of its parameter group and the dtype (tiny steps vanish in bfloat16)",
            )

    def _modules(self) -> dict[str, list[str]]:
        by_module: dict[str, list[str]] = {}
        for path in self.plan.trainable:
            by_module.setdefault(_module_of(path, self.plan), []).append(path)
        return by_module

    def _judge_dead(self, zero: list[str]) -> None:
        """Refuse modules and adapters that have no effect; a tensor beside others that have one is a remark."""
        adapters = [path for path in zero if self.plan.decisions[path].kind == "adapter"]
        by_module = self._modules()
        dead = [module for module, paths in by_module.items() if set(paths) <= set(zero) and not _may_be_flat(paths)]
        if adapters or dead:
            self._require_ordinary_weights()
        if adapters:
            raise TrainingError(
                f"the gradient of {shorten_names(adapters)} stayed exactly zero for {MAX_WATCHED_STEPS} steps",
                where="the first training steps",
                possible="adapters whose output reaches the loss",
                fix="take the module out of target_modules, or find out why its output is not used",
            )
        if dead:
            raise TrainingError.from_problems([_dead_modules(dead, by_module)])
        self.remarks.append(f"gradient exactly zero in the first {MAX_WATCHED_STEPS} steps: {shorten_names(zero)}")

    def _require_ordinary_weights(self) -> None:
        """Where weights have exploded, softmax and tanh give no gradient back, and the modules are not to blame."""
        sizes = largest({path: self._params[path] for path in self.plan.trainable})
        path = max(sizes, key=lambda name: sizes[name] if math.isfinite(sizes[name]) else math.inf)
        if not sizes[path] <= MAX_ORDINARY_WEIGHT:  # `not`: true for NaN too
            raise TrainingError(
                f"the weights have grown to {sizes[path]:.0e} ({path}), so that no gradient comes back any more",
                where="the first training steps",
                possible=f"weights up to {MAX_ORDINARY_WEIGHT:.0e}",
                fix="lower the learning rate (`optimizer.lr`, or that of the parameter group)",
            )

    # -- adapters really run

    def evaluation_begin(self) -> None:
        """Start to watch the first evaluation batch; later calls do nothing."""
        if not self._evaluated:
            self._phase = "evaluation"
            if not self._hooks:
                self._hook_adapted()

    def evaluation_end(self) -> None:
        """Check that every adapted module ran in that batch.

        Raises:
            TrainingError: an adapter was bypassed.
        """
        if not self._evaluated:
            self._phase = "training"
            self._require_forward("evaluation")
            self._evaluated = True
            if self._watched_steps:  # else the hooks still wait for the first training step
                self._drop_hooks()

    def _hook_adapted(self) -> None:
        targets = set(self.plan.adapters.rules) if self.plan.adapters else set[str]()
        for ref in ModuleTree.from_model(self.model).modules if targets else ():
            if ref.path in targets:
                self._hooks.append(ref.module.register_forward_pre_hook(self._note_run(ref.path)))

    def _note_run(self, path: str) -> Any:
        def note(module: nn.Module, args: Any) -> None:
            del module, args
            self._ran[self._phase].add(path)

        return note

    def _require_forward(self, phase: str) -> None:
        targets = self.plan.adapters.rules if self.plan.adapters else {}
        missed = [path for path in targets if path not in self._ran[phase]]
        if missed:
            raise TrainingError(
                f"the adapters of {shorten_names(missed)} did not run in {phase}",
                where=f"the first {phase} batch",
                possible="modules that the model calls",
                fix="take them out of target_modules: the model reads their weight directly, or does not use them",
            )

    def _drop_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- the whole run

    @property
    def frozen_digest(self) -> str:
        """Digest of the frozen parameters' bits at the start, for a resumed run to compare with its own."""
        return self._frozen.digest

    def before_save(self) -> None:
        """Look whether the frozen part is as it was, so that no checkpoint is kept of a run that left its plan.

        Raises:
            PlanMismatchError: a frozen tensor changed.
        """
        self._refuse_moved(self._frozen.changed_by_checksum(), "before a checkpoint was written")

    def final_check(self) -> str:
        """Compare the frozen part with what was there at the start, bit for bit; returns the line to print.

        Raises:
            PlanMismatchError: a frozen tensor changed.
        """
        self._drop_hooks()
        self._refuse_moved(self._frozen.changed(), "the end of training, before its last checkpoint")
        if self._movement is not None and self._movement.still:
            self._movement.look()
            if self._movement.still:
                still = shorten_names(self._movement.still)
                self.remarks.append(
                    f"{still} did not move: each step was below the spacing of its numbers "
                    "(a higher learning rate, or float32)"
                )
        return f"frozen part: {self._frozen} bit-identical to what was loaded"

    def _refuse_moved(self, moved: list[str], where: str) -> None:
        if moved:
            raise PlanMismatchError(
                f"{len(moved)} frozen tensors changed during the run: {shorten_names(moved)}",
                where=where,
                possible="a frozen part that is bit-identical to what was loaded",
                fix="look for code that writes weights itself; what was trained since the last checkpoint is not kept",
            )


def _module_of(path: str, plan: TrainabilityPlan) -> str:
    """The module that a trained tensor counts for: its owner, or the adapted module of an adapter tensor."""
    owner = path.rpartition(".")[0]
    if plan.decisions[path].kind == "adapter" and plan.adapters is not None:
        while owner and owner not in plan.adapters.rules:
            owner = owner.rpartition(".")[0]
    return owner or path


def _no_gradient(missing: list[str], step: int) -> Problem:
    return Problem(
        f"{len(missing)} trained tensors got no gradient at step {step}: {shorten_names(missing)}",
        "the first training step",
        "tensors that take part in the loss",
        "freeze what the loss does not use:\nfreeze_config:\n  freeze_modules:\n"
        + "\n".join(f'    - {{param: "{path}"}}' for path in missing[:_MAX_NAMES]),
    )


def _may_be_flat(paths: list[str]) -> bool:
    """Whether only biases train: one before a softmax over it, as of attention's keys, cannot change the result."""
    return all(path.rpartition(".")[2] == "bias" for path in paths)


def _dead_modules(dead: list[str], by_module: Mapping[str, list[str]]) -> Problem:
    paths = [path for module in dead for path in by_module[module]]
    return Problem(
        f"the gradient of all that trains in {shorten_names(dead)} was exactly zero in each of the first "
        f"{MAX_WATCHED_STEPS} steps",
        "the first training steps",
        "modules whose output reaches the loss",
        "freeze what has no effect on the loss (or take it out of unfreeze_modules):\nfreeze_config:\n"
        "  freeze_modules:\n"
        + "\n".join(f'    - {{param: "{path}"}}' for path in paths[:_MAX_NAMES])
        + "\nif other batches reach it, as a branch seldom taken: training.prove=false trains without the proof",
    )
