"""Proves on the running model that exactly the plan happens (DESIGN section 2, `prove`).

Watches the first steps with a learning rate above zero (longer what they cannot move, and what waits for its batch),
looks at the frozen part before every save, and compares it bit for bit at the end. Each look has a file of its own:
`gradients`, `waiting`, `movement`, `forwards`, `frozen_part`, `replicas`. Here is when each is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import PlanMismatchError, TrainingError
from frostline.trainability.agreement import Agreement
from frostline.trainability.mode import modules_out_of_eval
from frostline.trainability.proof.forwards import ForwardWatch
from frostline.trainability.proof.frozen_part import FrozenPart
from frostline.trainability.proof.gradients import MAX_WATCHED_STEPS, GradientWatch, no_gradient_in_an_epoch
from frostline.trainability.proof.movement import MovementWatch, rates_of
from frostline.trainability.proof.replicas import find_unequal
from frostline.trainability.proof.table_reads import TableReads
from frostline.trainability.proof.trained_modules import group_by_module
from frostline.trainability.proof.waiting import ConditionalWatch
from frostline.tree import canonical_named_parameters

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from frostline.trainability.plan import TrainabilityPlan


@dataclass
class Prover:
    """Checks one run, or one phase of it. Use in this order:

        prover = Prover(model, plan)                     # before the first step: remembers what is frozen
        prover.before_step(step, lr, optimizer)          # after backward, before the optimizer
        prover.after_step()                              # after the optimizer, before its zero_grad
        prover.evaluation_begin(); prover.evaluation_end()   # around the first evaluation batch
        prover.before_save()                             # before a checkpoint is written while the run goes on
        prover = prover.next_phase(plan, done)           # where another phase comes into force, after `enter_phase`
        prover.final_check()                             # at the end, before the last checkpoint: one line for the log

    Distributed: with a `group` each method is collective: call it on every process of the group, which then go on or
    fail together. Without one, this process is looked at alone.

    Attributes:
        steps_per_epoch: by when conditional tensors must have had a gradient; None: at the end, as a remark.
        done: steps done before, by a run that is resumed.
        waiting: what `waiting_for` was in the checkpoint that is resumed; None for a new run.
        watched: paths whose first steps are to be proven; None for all that trains.
        frozen_before: of the phase before.
        group: the processes that hold the same trained parameters, or parts of them.
        watching: whether further steps have to be reported.
        remarks: what was seen and is not an error, such as tensors whose gradient was exactly zero.
    """

    model: nn.Module
    plan: TrainabilityPlan
    steps_per_epoch: int | None = None
    done: int = 0
    waiting: Mapping[str, int | None] | None = None
    group: ProcessGroup | None = None
    watched: tuple[str, ...] | None = None
    frozen_before: FrozenPart | None = None
    watching: bool = field(default=True, init=False)
    remarks: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._agreement = Agreement(self.group)
        digests = self._agreement.gather(self.plan.digest)
        if len(set(digests)) > 1:
            shown = ", ".join(
                f"process {rank}: {digest[:8]}"
                for rank, digest in zip(self._agreement.process_ranks, digests, strict=True)
            )
            raise PlanMismatchError(
                f"the processes of the group have different plans ({shown})",
                where="the start of the proof",
                possible="one plan on every process",
                fix="resolve the plan from the same config and the same model on every process",
            )
        params = dict(canonical_named_parameters(self.model, unique=True))
        self._params = {path: params[path] for path in self.plan.trainable if path in params}
        watched = set(self.plan.trainable if self.watched is None else self.watched)
        conditional = [path for path in self._params if self.plan.decisions[path].conditional]
        certain = [path for path in self._params if path in watched and not self.plan.decisions[path].conditional]
        deadline = None if self.steps_per_epoch is None else self.done + self.steps_per_epoch
        self._frozen = FrozenPart(self.model, self.plan, self.frozen_before)
        self._gradients = GradientWatch(self._params, self.plan, certain, self._agreement)
        self._conditional = ConditionalWatch(self._params, conditional, deadline, self.waiting, self._agreement)
        self._movement = MovementWatch(self._params, self._agreement)
        self._certain = certain
        self._unfollowed = certain  # trained tensors with a gradient whose movement is not followed yet
        self._forwards = ForwardWatch(self.model, self.plan)
        self._forwards.begin()
        self._rates: tuple[float, torch.optim.Optimizer | None] = (0.0, None)
        self._watched_steps = 0
        self._in_step = False
        self._evaluated = False
        self._table_reads = TableReads(self.model)

    # -- the first steps

    def before_step(self, step: int, lr: float, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Check gradients of step `step` (0-based), if it is to be watched. Call after backward, before clipping.

        Args:
            lr: learning rate of the step.
            optimizer: whose groups say their own rates, and under `initial_lr` the largest that they will have.

        Raises:
            TrainingError: a trained tensor has no gradient or one that is not finite (a conditional one: none in a
                whole epoch); an adapter's forward did not run.
        """
        self._in_step = False
        if not self.watching:
            return
        arrived = self._conditional.look()
        if self._agreement.is_alone:  # else each process would follow others, and they could not compare
            self._unfollowed = [*self._unfollowed, *arrived]
        overdue = self._conditional.overdue(step + 1)
        if overdue:
            raise TrainingError.from_problems([no_gradient_in_an_epoch(overdue, step + 1)])
        if lr <= 0:  # nothing moves, so nothing else can be said
            return
        self._in_step = True
        self._rates = (lr, optimizer)
        if self._watched_steps == 0:
            self._require_forward("training")
            self._table_reads.require_none()
            self._forwards.pause()
            self._gradients.look(step)
        elif self._gradients.pending:
            self._gradients.look(step)
        if self._unfollowed:
            self._movement.follow(group_by_module(self._unfollowed, self.plan))
            self._unfollowed = []

    def after_step(self) -> None:
        """Check that trained modules moved and frozen tensors did not. Call after the optimizer's step.

        Raises:
            PlanMismatchError: a frozen tensor changed, a trained module or adapter did not, or replicas differ.
        """
        if not self._in_step:
            self._still_watching()
            return
        if self._watched_steps == 0:
            self._require_still()
            self._require_equal_replicas("after the first optimizer step")
        self._watched_steps += 1
        if self._movement.still and self._movement.is_due(self._watched_steps):
            self._require_moved()
        if self._gradients.pending and self._watched_steps >= MAX_WATCHED_STEPS:
            self._gradients.give_up()
            self.remarks += self._gradients.remarks
        self._still_watching()

    def _still_watching(self) -> None:
        begins = self._watched_steps == 0
        follows = bool(self._gradients.pending or self._movement.still or self._unfollowed)
        self.watching = begins or follows or self._conditional.active

    def _require_still(self) -> None:
        moved = self._agreement.union(self._frozen.changed())
        if moved:
            raise PlanMismatchError(
                f"frozen tensors changed in the first step: {shorten_names(moved)}",
                where="after the optimizer's step",
                possible="only the plan's trainable parameters move",
                fix="look for code that writes weights itself (moving averages, weight clipping), or thaw them",
            )
        awake = self._agreement.union(modules_out_of_eval(self.model))
        if awake:
            raise PlanMismatchError(
                f"frozen modules are in training mode: {shorten_names(awake)}",
                where="the first training step",
                possible="wholly frozen modules stay in evaluation mode (frozen_mode: eval), dropout included",
                fix="call train() instead of writing `module.training`, or set `frozen_mode: train`",
            )

    def _require_moved(self) -> None:
        # A module all of whose gradients were exactly zero is judged by the later steps.
        pending = set(self._gradients.pending)
        modules = group_by_module(self._params, self.plan)
        excused = [name for name in self._movement.still if pending.issuperset(modules[name])]
        rates, lr = rates_of(self._rates[1]), self._rates[0]
        dead = self._movement.find_dead(lambda path: rates.get(id(self._params[path]), (lr, None)), excused)
        if dead:
            raise PlanMismatchError(
                f"the first steps with a learning rate above zero changed nothing in {shorten_names(dead)}",
                where="after the optimizer's step",
                possible="every trained module moves",
                fix="check the learning rate of its parameter group and the dtype (tiny steps vanish in bfloat16)",
            )

    def _require_equal_replicas(self, where: str) -> None:
        unequal = find_unequal(self._params, self._agreement)
        if unequal:
            ranks = sorted({rank for found in unequal.values() for rank in found})
            raise PlanMismatchError(
                f"{len(unequal)} trained tensors differ between processes: {shorten_names(list(unequal))} "
                f"(process {', '.join(map(str, ranks))} has other values)",
                where=where,
                possible="replicas that are equal bit for bit",
                fix="start every process from the same values, let the wrapper average the gradients (call the wrapped "
                "model, not the one inside), and take every optimizer step on every process",
            )

    # -- adapters really run

    def evaluation_begin(self) -> None:
        """Start to watch the first evaluation batch; later calls do nothing."""
        if not self._evaluated:
            self._forwards.phase = "evaluation"
            self._forwards.begin()

    def evaluation_end(self) -> None:
        """Check that every adapted module ran in that batch.

        Raises:
            TrainingError: an adapter was bypassed.
        """
        if not self._evaluated:
            self._forwards.phase = "training"
            self._require_forward("evaluation")
            self._evaluated = True
            if self._watched_steps:  # else it still waits for the first training step
                self._forwards.pause()

    def _require_forward(self, phase: str) -> None:
        missed = self._agreement.union(self._forwards.missed(phase))
        if missed and self._forwards.saw_nothing(phase) and self._agreement.is_alone:
            self.remarks.append(
                f"that every adapter runs in {phase} could not be seen: the model was compiled before the proof began"
            )
        elif missed:
            raise TrainingError(
                f"the adapters of {shorten_names(missed)} did not run in {phase}",
                where=f"the first {phase} batch",
                possible="modules that the model calls",
                fix="take them out of target_modules: the model reads their weight directly, or does not use them",
            )

    # -- the whole run

    @property
    def frozen_digest(self) -> str:
        """Digest of the frozen parameters' bits at the start, for a resumed run to compare with its own."""
        return self._frozen.digest

    @property
    def waiting_for(self) -> dict[str, int | None]:
        """Conditional tensors that have had no gradient so far, and by how many steps done each must have had one.

        Belongs into a checkpoint: a resumed run gives it back as `waiting`, and asks when this one would have asked.
        """
        return dict(self._conditional.waiting)

    def before_save(self) -> None:
        """Look whether the frozen part is as it was, so that no checkpoint is kept of a run that left its plan.

        Raises:
            PlanMismatchError: a frozen tensor changed, or replicas differ.
        """
        where = "before a checkpoint was written"
        self._refuse_moved(where)
        self._require_equal_replicas(where)
        self._conditional.share()

    def final_check(self) -> str:
        """Compare the frozen part with what was there at the start, bit for bit; returns the line to print.

        Raises:
            PlanMismatchError: a frozen tensor changed, or replicas differ.
        """
        self._forwards.end()
        where = "the end of training, before its last checkpoint"
        self._refuse_moved(where)
        self._require_equal_replicas(where)
        self._remark_on_still()
        self._conditional.share()
        if self._conditional.waiting:
            names = shorten_names(list(self._conditional.waiting))
            self.remarks.append(f"no gradient in any step of this run, which is shorter than an epoch: {names}")
        return f"frozen part: {self._frozen.describe()}"

    def next_phase(self, plan: TrainabilityPlan, done: int) -> Prover:
        """Close this phase, and go on with one that watches what starts to train and keeps still what freezes.

        Call it when `plan` is in force and no step has been taken in it; nothing of this prover is of use afterwards.

        Args:
            done: steps done so far.

        Raises:
            PlanMismatchError: a frozen tensor changed, or replicas differ.
        """
        self._forwards.end()
        where = f"the end of phase {self.plan.phase}"
        self._refuse_moved(where)
        self._require_equal_replicas(where)
        self._remark_on_still()
        self._conditional.share()
        before = set(self.plan.trainable)
        unproven = set(self._gradients.pending if self._watched_steps else self._certain)
        deadline = None if self.steps_per_epoch is None else done + self.steps_per_epoch
        starts = [path for path in plan.trainable if path not in before]
        waiting = self.waiting_for | {path: deadline for path in starts if plan.decisions[path].conditional}
        return Prover(
            self.model,
            plan,
            self.steps_per_epoch,
            done,
            waiting,
            self.group,
            watched=(*starts, *(path for path in plan.trainable if path in unproven and path in before)),
            frozen_before=self._frozen,
            remarks=self.remarks,
        )

    def _remark_on_still(self) -> None:
        self._movement.look()
        if self._movement.still and self._watched_steps:
            still = shorten_names(self._movement.still)
            self.remarks.append(
                f"{still} did not move: each step was below the spacing of its numbers "
                "(a higher learning rate, or float32)"
            )

    def _refuse_moved(self, where: str) -> None:
        moved = self._agreement.union(self._frozen.changed())
        if moved:
            raise PlanMismatchError(
                f"{len(moved)} frozen tensors changed during the run: {shorten_names(moved)}",
                where=where,
                possible="a frozen part that is bit-identical to what was loaded",
                fix="look for code that writes weights itself; what was trained since the last checkpoint is not kept",
            )
