"""`resolve` and `prepare`: where freeze rules and adapters meet. The order is that of DESIGN section 2.

Everything else of the library works on the plan that comes out of here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from frostline.adapters import (
    PEFT,
    InjectedAdapter,
    adapters_of,
    differences_of,
    find_targets,
    inject,
    lay_rows,
    parse_method,
    planned_params,
    refuse_unsupported,
    remove_rows,
    rows_of,
)
from frostline.adapters import merge as merge_adapters
from frostline.adapters.base import DEFAULT_NAME
from frostline.adapters.targets import Targets
from frostline.config.origin import Origins
from frostline.errors import (
    AdapterError,
    ConfigError,
    FrostlineError,
    ModelError,
    PlanMismatchError,
    Problem,
    SelectorError,
)
from frostline.trainability import (
    AdapterTargets,
    FreezeRules,
    Rule,
    TrainabilityPlan,
    built_flags,
    detach_plan,
    hold_in_eval,
    named_in_rows,
    parse_freeze_config,
    reach_of,
    resolve_plan,
    show_rows,
)
from frostline.tree import ModuleTree, canonical_named_parameters, collector_paused, is_fully_sharded, set_trainable

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class _Resolved:
    plan: TrainabilityPlan
    method: PEFT | None
    targets: Targets | None
    tree: ModuleTree


@collector_paused()
def resolve(
    model: nn.Module,
    *,
    freeze_config: Mapping[str, Any] | FreezeRules | None = None,
    peft: PEFT | Mapping[str, Any] | None = None,
    new: Iterable[str] = (),
    origins: Origins | None = None,
) -> TrainabilityPlan:
    """The plan for `model`: which parameter trains and which rule decided it. Touches nothing; the meta device works.

    Args:
        model: bare, or prepared with the same `peft`.
        freeze_config: a block in the grammar of the config file.
        peft: a method such as `LoRA(rank=8)`, or a `peft` block.
        new: paths of parameters that the base files do not hold (a fresh head); they train.
        origins: places of a config file's keys, for messages.

    Raises:
        ConfigError: with all faults of both blocks. SelectorError: a selector matches nothing or contradicts another.
        AdapterError: a target cannot be adapted.
    """
    return _resolve(model, freeze_config, peft, new, origins).plan


@collector_paused()
def prepare(
    model: ModelT,
    *,
    freeze_config: Mapping[str, Any] | FreezeRules | None = None,
    peft: PEFT | Mapping[str, Any] | None = None,
    new: Iterable[str] = (),
    origins: Origins | None = None,
    adapter: str = DEFAULT_NAME,
) -> tuple[ModelT, TrainabilityPlan]:
    """Inject adapters into `model` and apply the plan to it. Mutates and returns `model`.

    Arguments and errors are those of `resolve`; nothing is changed when it raises. `adapter` names the new adapter.
    Call it before the model is wrapped or sharded: DDP and `fully_shard` capture parameters and flags.

    Raises:
        PlanMismatchError, AdapterError: the model is sharded, inside DDP or tensor parallel already.

    Example:
        model, plan = prepare(model, peft=LoRA(rank=8, target_modules=["*_proj"]))
    """
    _require_module(model)
    if is_fully_sharded(model):
        raise PlanMismatchError(
            "prepare comes too late: fully_shard has taken the parameters, so that none can be added and what is "
            "frozen is sharded as if it trained",
            where="prepare",
            possible="build, prepare (adapters and flags), then parallelize",
            fix="call prepare on the bare model, then fully_shard(model), then plan.bind(model)",
        )
    resolved = _resolve(model, freeze_config, peft, new, origins, adapter)
    wanted = _wanted_rows(resolved.plan)
    laid = bool(wanted) and not rows_of(model)
    if laid:
        lay_rows(model, wanted)
    try:
        if resolved.method is not None and not adapters_of(model):
            inject(model, resolved.method, adapter=adapter, targets=resolved.targets, tree=resolved.tree)
    except BaseException:
        if laid:
            remove_rows(model)
        raise
    resolved.plan.apply(model)
    return model, resolved.plan


def merge(model: ModelT) -> ModelT:
    """Fold every adapter and all trained rows into the base weights and take them away. Mutates and returns `model`.

    The model is plain again: it has no plan, every parameter keeps the flag that it has. To undo a merge use
    `frostline.adapters.merge(model, keep=True)` and `unmerge`.

    Raises:
        AdapterError: the model has neither, or a merged weight is not finite; nothing is changed then.
    """
    merge_adapters(model)
    detach_plan(model)
    return model


def release(model: nn.Module) -> None:
    """Undo `prepare` as far as flags and modes go: everything is as the model was built, and it has no plan."""
    flags = built_flags(model) or {}
    hold_in_eval(model, ())
    for path, param in canonical_named_parameters(model):
        if path in flags:
            set_trainable(param, flags[path])
    detach_plan(model)


@collector_paused()
def _resolve(
    model: nn.Module,
    freeze_config: Mapping[str, Any] | FreezeRules | None,
    peft: PEFT | Mapping[str, Any] | None,
    new: Iterable[str],
    origins: Origins | None,
    adapter: str | None = None,
) -> _Resolved:
    _require_module(model)
    origins = origins or Origins()
    problems: list[Problem] = []
    kinds: list[type[FrostlineError]] = []
    rules, method = FreezeRules(), None
    try:
        rules = (
            freeze_config
            if isinstance(freeze_config, FreezeRules)
            else parse_freeze_config(freeze_config, origins.below("freeze_config"))
        )
    except FrostlineError as error:
        problems.extend(error.problems)
        kinds.append(type(error))
    try:
        method = peft if isinstance(peft, PEFT) or peft is None else parse_method(peft, origins.below("peft"))
    except FrostlineError as error:
        problems.extend(error.problems)
        kinds.append(type(error))
    if problems:
        raise kinds[0].from_problems(problems)
    if method is None and adapters_of(model):
        raise AdapterError(
            f"the model has adapters ({', '.join(adapters_of(model))}), but no `peft` is given: that would thaw it",
            where=origins.at("peft"),
            possible="the method that it was prepared with",
            fix="give the same `peft` again, or start from a freshly loaded base model",
        )
    present = ModuleTree.from_model(model)
    tree = present.without_rows()
    new_paths = frozenset(new)
    _require_known(new_paths, tree)
    if adapter is None:  # whatever the model's adapter is called
        adapter = next(iter(adapters_of(model)), DEFAULT_NAME)
    flags = built_flags(model)  # None: the tree's are those that the model came with
    targets = None
    additions = None
    if method is not None:
        targets = _targets(model, tree, rules, method, new_paths, origins.below("peft"), adapter)
        planned = {} if tree.adapter_params else planned_params(tree, method, targets, adapter=adapter)
        additions = AdapterTargets(
            method.label,
            {target.path: Rule("adapter", target.chosen_by, target.origin) for target in targets.targets},
            planned,
            targets.notes,
            frozenset(target.path for target in targets.targets if target.conditional),
        )
    named = named_in_rows(tree, (*rules.freeze, *rules.unfreeze))
    refuse_unsupported(tree, [(index, selector.origin, str(selector)) for index, selector in named])
    plan = resolve_plan(tree, rules, adapters=additions, new=new_paths, built_flags=flags)
    if tree is not present:
        _require_same_rows(model, plan, origins)
    return _Resolved(plan, method, targets, tree)


def _require_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"of type {type(model).__name__}"
        raise ModelError(
            f"the model is {what}",
            where="model",
            possible="an instance of torch.nn.Module",
            fix="give each model of a list by itself, the object in place of its class, and the module of a trainer",
        )


def _wanted_rows(plan: TrainabilityPlan) -> dict[str, tuple[int, ...]]:
    """The trained rows of a plan, by path of their parameter."""
    return {entry.path: entry.rows for entry in plan.decisions.values() if entry.rows is not None}


def _require_same_rows(model: nn.Module, plan: TrainabilityPlan, origins: Origins) -> None:
    """A model that has trained rows has to be given the config that made them, as with adapters."""
    present = {path: entry.rows for path, entry in rows_of(model).items()}
    wanted = _wanted_rows(plan)
    if not present or present == wanted:
        return
    differences = [
        f"{path}: rows {show_rows(present.get(path, ())) or 'none'} in the model, "
        f"{show_rows(wanted.get(path, ())) or 'none'} in the config"
        for path in sorted({*present, *wanted})
        if present.get(path) != wanted.get(path)
    ]
    raise AdapterError(
        "the model already has trained rows that are not what this config asks for",
        where=origins.at("freeze_config"),
        possible="\n".join(differences),
        fix="give the same `freeze_config` again, or start from a freshly loaded base model",
    )


def _targets(
    model: nn.Module,
    tree: ModuleTree,
    rules: FreezeRules,
    method: PEFT,
    new: frozenset[str],
    origins: Origins,
    adapter: str,
) -> Targets:
    """The targets, after dead selectors of both blocks were reported together."""
    problems: list[Problem] = []
    try:
        reach = reach_of(tree, rules, new)
    except SelectorError as error:
        problems.extend(error.problems)
        reach = None
    try:
        targets = find_targets(
            tree,
            method,
            left_alone=reach.left_alone if reach else None,
            trained_in_full=reach.trained_in_full if reach else None,
            required=reach.required if reach else None,
            in_rows=reach.in_rows if reach else None,
            origins=origins,
        )
    except (SelectorError, AdapterError) as error:
        if not problems:
            raise
        raise SelectorError.from_problems([*problems, *error.problems]) from None
    if problems:
        raise SelectorError.from_problems(problems)
    present = adapters_of(model)
    differences = _differences(present, method, targets, adapter) if present else ""
    if differences:
        raise AdapterError(
            f"the model already has adapters ({', '.join(present)}) that are not what this config asks for: "
            f"{differences}",
            where=origins.at(),
            possible="a bare model, or one prepared with the same `peft` block",
            fix="start from a freshly loaded base model",
        )
    return targets


def _differences(present: Mapping[str, InjectedAdapter], method: PEFT, targets: Targets, adapter: str) -> str:
    """How the adapter that the model has differs from the wanted one, in words; empty if it does not."""
    held = present.get(adapter)
    if held is None:
        return f"none is named {adapter}"
    if set(held.targets) != {target.path for target in targets.targets}:
        return f"{len(held.targets)} modules are adapted, {len(targets.targets)} are wanted"
    return ", ".join(f"{key} is {theirs}, not {ours}" for key, theirs, ours in differences_of(held.method, method))


def _require_known(new: frozenset[str], tree: ModuleTree) -> None:
    unknown = sorted(new - tree.param_index.keys()) if new else []
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} in `new`, but the model has no such parameter",
            where="new",
            possible="paths of parameters, such as " + ", ".join(list(tree.param_index)[-3:]),
            fix="correct the path",
        )
