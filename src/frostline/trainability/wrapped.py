"""Is a wrapper at odds with a plan? What DDP captured when it was built, and what one `fully_shard` call may mix.

Reads wrappers, changes nothing, communicates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from frostline.config.wording import shorten_names
from frostline.errors import PlanMismatchError, Problem
from frostline.tree import canonical_named_parameters, data_parallel_parts, has_flat_parameters, shard_groups

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_captured_by: WeakKeyDictionary[DistributedDataParallel, frozenset[int]] = WeakKeyDictionary()


def refuse_flat_parameters(model: nn.Module, where: str) -> None:
    """Raise PlanMismatchError for a model whose parameters FSDP1 has flattened."""
    if has_flat_parameters(model):
        raise PlanMismatchError(
            "a part of the model is wrapped by FullyShardedDataParallel, whose flat parameters have no paths",
            where=where,
            possible="fully_shard (FSDP2), DistributedDataParallel, tensor parallel, pipeline stages",
            fix="use torch.distributed.fsdp.fully_shard",
        )


def require_fitting_wrappers(plan: TrainabilityPlan, model: nn.Module, where: str) -> None:
    """Raise PlanMismatchError where `wrapper_problems` finds something."""
    problems = wrapper_problems(plan, model, where)
    if problems:
        raise PlanMismatchError.from_problems(problems)


def wrapper_problems(plan: TrainabilityPlan, model: nn.Module, where: str) -> list[Problem]:
    """What the wrappers of `model` would do otherwise than `plan` says."""
    parts = data_parallel_parts(model)
    groups = list(shard_groups(model))
    if not parts and not groups:
        return []
    trains = {name: entry.trains for entry in plan.decisions.values() for name in (entry.path, *entry.aliases)}
    path_of = {id(param): path for path, param in canonical_named_parameters(model, unique=True)}
    problems: list[Problem] = []
    for part in parts:
        problems.extend(_captured_otherwise(part, path_of, trains, where))
    for group in groups:
        paths = {path_of[id(param)]: param.dtype for param in group if id(param) in path_of}
        by_dtype: dict[str, list[str]] = {}
        for path, dtype in paths.items():
            if trains.get(path):
                by_dtype.setdefault(str(dtype).removeprefix("torch."), []).append(path)
        if len(by_dtype) > 1:
            problems.append(_mixed_dtypes(by_dtype, where))
    return problems


def _captured_otherwise(
    part: DistributedDataParallel, path_of: Mapping[int, str], trains: Mapping[str, bool], where: str
) -> list[Problem]:
    held: dict[int, Any] = {id(param): param for param in part.module.parameters()}
    left_out = {id(param) for name, param in part.module.named_parameters() if name in part.parameters_to_ignore}
    captured = _captured(part)
    ours = {key for key in held if trains.get(path_of.get(key, ""), False) and key not in left_out}
    late = [path_of[key] for key in held if key in ours and key not in captured]
    # With this switch DDP goes on without the gradients that no longer come.
    waited_for = captured - ours if not part.find_unused_parameters else frozenset[int]()
    early = [path for key, path in path_of.items() if key in waited_for]
    if waited_for - path_of.keys():
        early.append("a parameter that has been replaced since")
    problems: list[Problem] = []
    if late:
        problems.append(
            Problem(
                f"{shorten_names(late)} {'trains' if len(late) == 1 else 'train'} now, but DDP was built while "
                "frozen or not there: the gradients would not be averaged over the processes",
                where,
                "everything that trains is there and has its flag when DistributedDataParallel(model) is called",
                "prepare (or thaw), then wrap: call DistributedDataParallel on the bare model again",
            )
        )
    if early:
        problems.append(
            Problem(
                f"DDP waits for the gradient of {shorten_names(early)}, which {'is' if len(early) == 1 else 'are'} "
                "frozen now",
                where,
                "what is frozen is frozen when DistributedDataParallel(model) is called",
                "prepare (or freeze), then wrap: call DistributedDataParallel on the bare model again",
            )
        )
    return problems


def _captured(part: DistributedDataParallel) -> frozenset[int]:
    """Identities of the parameters whose gradients DDP averages.

    Its reducer tells them only through zeros as large as all of these gradients, so it is asked once. A set that
    `find_unused_parameters` or rebuilt buckets use later is the same one.
    """
    known = _captured_by.get(part)
    if known is None:
        buckets = cast("list[Any]", part.reducer._get_zeros_like_grad_buckets())
        known = frozenset(id(param) for bucket in buckets for param in bucket.parameters())
        _captured_by[part] = known
    return known


def _mixed_dtypes(by_dtype: Mapping[str, list[str]], where: str) -> Problem:
    shown = "\n".join(f"{dtype}: {shorten_names(paths, 4)}" for dtype, paths in by_dtype.items())
    return Problem(
        f"one fully_shard call has trained parameters of {len(by_dtype)} dtypes: {', '.join(by_dtype)}",
        where,
        f"one dtype for all that trains in a call; what is frozen may have another\n{shown}",
        "convert what trains before fully_shard (`training.param_dtype`, or `param.data = param.data.float()`), give "
        "the adapters the dtype of the base (`peft.dtype: bfloat16`), or shard their modules in calls of their own",
    )
