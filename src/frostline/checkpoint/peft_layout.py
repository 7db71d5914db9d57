"""Where each trained tensor goes in Hugging Face peft's layout: its key, and the config with which peft applies it.

Knows plans, adapters and peft's rules; reads and writes no files.

    adapter                        base_model.model.<path>.lora_A.weight            (without the adapter's name)
    module trained in full         base_model.model.<path>...                       and its name in modules_to_save
    single parameter, statistics   base_model.model.<path>                          peft copies it into the base
    the same of an adapted module  base_model.model.<module>.base_layer.<name>      (peft ignores it without)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from frostline.adapters import InjectedAdapter, LoRA, adapters_of
from frostline.checkpoint.peft_matching import (
    AUTOMATIC_NAMES,
    PREFIX,
    modules_to_save_for,
    saved_modules_of,
    shadowed_targets,
    target_modules_for,
)
from frostline.errors import CheckpointError
from frostline.trainability import TrainabilityPlan
from frostline.tree import AdapterPart, canonical_named_buffers, canonical_named_modules

OTHERWISE = "peft computes otherwise"  # begins a note that makes the file useless for peft, not for Frostline
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)


@dataclass(frozen=True)
class PeftLayout:
    """How a trained part looks in peft.

    Attributes:
        adapter: name of the adapter, which no key carries.
        keys: key in the file by canonical path, of parameters and buffers.
        config: content of `adapter_config.json` but for the base's name.
        inexpressible: reason by path, for what peft cannot load.
        notes: what differs from what one might expect, in words.
    """

    adapter: str
    keys: Mapping[str, str]
    config: Mapping[str, Any]
    inexpressible: Mapping[str, str]
    notes: tuple[str, ...]


def trained_paths(model: torch.nn.Module, plan: TrainabilityPlan, adapter: str | None = None) -> list[str]:
    """Canonical paths of all that a checkpoint must hold, in the model's order; the plan decides, never a flag.

    That is every adapter parameter, every parameter that trains, every new one, and the persistent buffers that may
    have moved: those outside wholly frozen subtrees, or all where these are not held in evaluation mode.

    Args:
        adapter: leave out the parameters of other adapters.
    """
    others = {
        factor
        for other in adapters_of(model).values()
        if adapter is not None and other.name != adapter
        for factor in plan.kept
        if split_adapter_path(factor, other) is not None
    }
    paths = [path for path in plan.kept if path not in others]
    return paths + _moved_buffers(model, plan)


def planned_empty(plan: TrainabilityPlan) -> set[str]:
    """Paths of the parameters that have no element by the plan, such as a table of no rows."""
    return {path for path, decision in plan.decisions.items() if 0 in decision.shape}


def require_no_extra_state(model: torch.nn.Module, plan: TrainabilityPlan) -> None:
    """Raise where a module that may have changed has state that is neither parameter nor buffer: no file holds it.

    Raises:
        CheckpointError: names the module.
    """
    for path, module in canonical_named_modules(model):
        if type(module).get_extra_state is torch.nn.Module.get_extra_state or _is_held(path, plan):
            continue
        if module.get_extra_state() is not None:
            raise CheckpointError(
                f"{path or 'the model'} ({type(module).__name__}) keeps state in `get_extra_state`, which would be "
                "lost: a checkpoint holds parameters and persistent buffers",
                where=path or "the model",
                possible="modules that are frozen as a whole, or whose state is in parameters and buffers",
                fix="keep it in a persistent buffer, let get_extra_state return None, or freeze the module",
            )


def base_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Every module under every name, without adapter internals."""
    found: dict[str, torch.nn.Module] = {}
    internal: tuple[str, ...] = ()
    for path, module in canonical_named_modules(model):
        if isinstance(module, AdapterPart):
            internal += (f"{path}.",)
        elif not (internal and path.startswith(internal)):
            found[path] = module
    return found


def only_adapter(model: torch.nn.Module, name: str | None = None) -> InjectedAdapter:
    """The adapter called `name`, or the only one.

    Raises:
        CheckpointError: there is none, or there are several and `name` is None.
    """
    adapters = adapters_of(model)
    if name is None and len(adapters) == 1:
        return next(iter(adapters.values()))
    if name is not None and name in adapters:
        return adapters[name]
    raise CheckpointError(
        f"the model has no adapter {name!r}" if name else f"the model has {len(adapters)} adapters",
        possible=", ".join(adapters) or "none: it has no adapter",
        fix="name one of them" if adapters else "use save_trained for a model without adapters",
        where="adapter",
    )


def split_adapter_path(path: str, adapter: InjectedAdapter) -> tuple[str, str, str] | None:
    """`<target>.<factor>.<adapter>.<rest>` -> (target, factor, rest) if `path` belongs to exactly this adapter."""
    for dot in _dots(path):
        if path[:dot] in adapter.targets:
            factor, _, rest = path[dot + 1 :].partition(".")
            name, _, rest = rest.partition(".")
            if name == adapter.name:
                return path[:dot], factor, rest
    return None


def peft_key(path: str, adapter: InjectedAdapter) -> str:
    """Key of the parameter or buffer `path` in the file."""
    if (parts := split_adapter_path(path, adapter)) is not None:
        return PREFIX + ".".join(part for part in parts if part)
    owner, _, leaf = path.rpartition(".")
    return f"{PREFIX}{owner}.base_layer.{leaf}" if owner in adapter.targets else PREFIX + path


def plan_layout(
    model: torch.nn.Module, plan: TrainabilityPlan, *, adapter: str | None = None, task_type: str | None = None
) -> PeftLayout:
    """Lay out the trained part of `model` for peft.

    Args:
        adapter: name of the adapter, needed where the model has several.
        task_type: peft's task type (`SEQ_CLS`, `CAUSAL_LM`) that the recipe stands for. It is left out of the config
            where peft would then save modules that have not been trained.

    Raises:
        CheckpointError: no such adapter, or a method that peft has no counterpart for.
    """
    injected = only_adapter(model, adapter)
    method = injected.method
    if not isinstance(method, LoRA):
        raise CheckpointError(
            f"{method.label} has no counterpart in peft's layout yet",
            possible="LoRA",
            where="peft.method",
            fix="save it as a checkpoint of a run, or use LoRA",
        )
    targets = set(injected.targets)
    modules = base_modules(model)
    # Shared modules come once, under the first name, as in peft's own walk.
    first_names = {id(module): path for path, module in reversed(modules.items())}
    saved = trained_paths(model, plan, injected.name)
    whole = _whole_modules(plan, modules, set(saved), targets)
    names, covered = modules_to_save_for(whole, modules, targets)

    notes = [
        f"{OTHERWISE}: {path} is one module under the names {', '.join(names)}, of which peft adapts one"
        for path, names in _names_of_shared(modules).items()
        if path in targets
    ]
    automatic = AUTOMATIC_NAMES.get(task_type or "", ())
    excess = saved_modules_of(automatic, modules, targets) - covered
    shadowed = shadowed_targets(automatic, targets)
    if excess or shadowed:
        notes.append(
            f"adapter_config.json has no task_type: with {task_type} peft would itself train and expect "
            f"{', '.join(sorted(excess | shadowed))} in full"
        )
        task_type = None
    for path in sorted(whole - covered):
        notes.append(f"{path} is saved as plain tensors: peft's modules_to_save has no name for it alone")

    keys: dict[str, str] = {}
    inexpressible: dict[str, str] = {}
    for path in [*saved, *_buffers_below(model, covered)]:
        key = peft_key(path, injected)
        decision = plan.decisions.get(path)
        if ".lora_" in key and (decision is None or decision.kind != "adapter"):
            inexpressible[path] = "its name looks like a part of an adapter, which peft renames while it loads"
        else:
            keys[path] = key
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": task_type,
        "r": method.rank,
        "lora_alpha": _plain_number(method.resolved_alpha),
        "lora_dropout": method.dropout,
        "use_rslora": method.use_rslora,
        "target_modules": target_modules_for(targets, set(first_names.values())),
        "modules_to_save": names or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    return PeftLayout(injected.name, keys, config, inexpressible, tuple(notes))


def _names_of_shared(modules: Mapping[str, torch.nn.Module]) -> dict[str, tuple[str, ...]]:
    """Path -> all paths of its module, for modules that are registered more than once."""
    by_identity: dict[int, list[str]] = {}
    for path, module in modules.items():
        by_identity.setdefault(id(module), []).append(path)
    return {path: tuple(paths) for paths in by_identity.values() if len(paths) > 1 for path in paths}


def _whole_modules(
    plan: TrainabilityPlan,
    modules: Mapping[str, torch.nn.Module],
    saved: set[str],
    targets: set[str],
) -> set[str]:
    """The largest modules of which every parameter is saved, that hold no adapter and no tied tensor.

    peft copies such a module; a tied tensor would lose its partner by that.
    """
    broken: set[str] = {""}
    owners: set[str] = set()
    names = [
        (name, path in saved and not decision.aliases)
        for path, decision in plan.decisions.items()
        for name in (path, *decision.aliases)
    ]
    for name, usable in [*names, *((f"{target}.", False) for target in targets)]:
        parent = name.rpartition(".")[0]
        while parent:
            (owners if usable else broken).add(parent)
            parent = parent.rpartition(".")[0]
    shared = set(_names_of_shared(modules))
    good = {path for path in owners - broken - shared if path in modules and not isinstance(modules[path], _CONTAINERS)}
    return {path for path in good if not any(path[:end] in good for end in _dots(path))}


def _moved_buffers(model: torch.nn.Module, plan: TrainabilityPlan) -> list[str]:
    buffers = canonical_named_buffers(model, persistent_only=True)
    return [path for path, _ in buffers if not _is_held(path.rpartition(".")[0], plan)]


def _is_held(path: str, plan: TrainabilityPlan) -> bool:
    """Whether the module `path` is part of a subtree that has been wholly frozen so far, held in evaluation mode."""
    return any(root in ("", path) or path.startswith(f"{root}.") for root in plan.untouched_roots)


def _buffers_below(model: torch.nn.Module, modules: set[str]) -> list[str]:
    """peft expects every persistent buffer of a module in `modules_to_save`."""
    above = tuple(f"{path}." for path in modules)
    return [path for path, _ in canonical_named_buffers(model, persistent_only=True) if path.startswith(above)]


def _dots(path: str) -> list[int]:
    return [index for index, character in enumerate(path) if character == "."]


def _plain_number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value
