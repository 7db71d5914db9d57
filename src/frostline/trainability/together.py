"""All processes of a group fail together, or none does: one exchange of what each of them found.

Only called where the caller names a group. Knows plans by digest, and models not at all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frostline.config.wording import shorten_names
from frostline.errors import FrostlineError, PlanMismatchError
from frostline.trainability.agreement import Agreement
from frostline.trainability.screen.difference import diff_plans

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from frostline.trainability.plan import TrainabilityPlan

_MAX_LINES = 12


@dataclass(frozen=True)
class _Finding:
    """What one process has to say: digest of its whole plan, planned paths that its stage holds, its error."""

    digest: str
    held: list[str] | None
    error: str


def agree(
    plan: TrainabilityPlan,
    group: ProcessGroup,
    *,
    error: Exception | None = None,
    held: Collection[str] | None = None,
    where: str = "plan.agree",
) -> None:
    """Raise on every process of `group` if one of them failed, if plans differ, or if no stage holds a parameter.

    Distributed: collective; call on every process of `group`, also on one that failed.

    Args:
        error: what this process would raise; it does, after the others know.
        held: planned paths that the stage of this process holds; None where every process has the whole model.

    Raises:
        PlanMismatchError: on all processes, with what the others found.
    """
    together = Agreement(group)
    own = (plan.whole.digest, None if held is None else sorted(held), _first_line(error))
    findings = [_Finding(*entry) for entry in together.gather(own)]
    if error is not None:
        raise error
    failed = {process_rank: entry.error for process_rank, entry in enumerate(findings) if entry.error}
    if failed:
        raise PlanMismatchError(
            f"process {', '.join(map(str, failed))} of {len(findings)} failed, so that all stop",
            where=where,
            possible="\n".join(f"process {process_rank}: {text}" for process_rank, text in failed.items()),
            fix="see the whole message in the output of that process",
        )
    digests = {entry.digest for entry in findings}
    if len(digests) > 1:
        raise _different_plans(plan, together, [entry.digest for entry in findings], where)
    _require_complete(plan, findings, where)


def _first_line(error: Exception | None) -> str:
    if error is None:
        return ""
    text = error.problems[0].what if isinstance(error, FrostlineError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def _different_plans(plan: TrainabilityPlan, together: Agreement, digests: list[str], where: str) -> PlanMismatchError:
    """The error, with what differs from process 0: every process knows of it, so that one more exchange is safe."""
    ours = plan.whole.to_json()
    theirs = together.gather(ours)[0]
    lines = [str(line) for line in diff_plans(theirs, ours)]
    shown = lines[:_MAX_LINES] + ([f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else [])
    plans = ", ".join(f"process {process_rank}: {digest[:8]}" for process_rank, digest in enumerate(digests))
    return PlanMismatchError(
        f"the processes have different plans ({plans})",
        where=where,
        possible="one plan on all processes\n" + "\n".join(shown or ["this process has the plan of process 0"]),
        fix="resolve from the same config and the same model everywhere, before the processes do different things",
    )


def _require_complete(plan: TrainabilityPlan, findings: list[_Finding], where: str) -> None:
    stages = [frozenset(entry.held) for entry in findings if entry.held is not None]
    if not stages:
        return
    missing = [path for path in plan.whole.decisions if not any(path in held for held in stages)]
    if missing:
        raise PlanMismatchError(
            f"{len(missing)} planned parameters are in none of the {len(stages)} stages: {shorten_names(missing)}",
            where=where,
            possible="stages that together hold every planned parameter under its path in the whole model",
            fix="keep the paths when you split: a stage that renumbers its blocks (layers.2 as layers.0) would get the "
            "decisions of others; keep them in a ModuleDict under their numbers, or delete what is not held",
        )
