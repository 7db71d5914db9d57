"""Which modules a method adapts, and what was skipped and why. Reads the tree, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from frostline.adapters.base import ALL_LINEAR, PEFT
from frostline.adapters.weight_readers import reader_of
from frostline.config.origin import Origin, Origins
from frostline.errors import AdapterError, Problem
from frostline.selectors import Selector, parse_selectors, require_matches
from frostline.tree import ModuleTree, join_path

_MAX_NAMES = 5


@dataclass(frozen=True)
class Target:
    """One module to adapt: index in the tree, path, and the words and place of the selector that chose it."""

    index: int
    path: str
    chosen_by: str
    origin: Origin


@dataclass(frozen=True)
class Targets:
    """The modules to adapt, in definition order, and a note for each reason to skip others."""

    targets: tuple[Target, ...]
    notes: tuple[str, ...]


def find_targets(
    tree: ModuleTree,
    method: PEFT,
    *,
    left_alone: bytearray | None = None,
    trained_in_full: bytearray | None = None,
    origins: Origins | None = None,
) -> Targets:
    """Resolve `target_modules` and `exclude_modules` of `method`.

    Args:
        tree: the base tree.
        left_alone: mask over modules that must stay exactly as they are.
        trained_in_full: mask over parameters that train themselves; a module whose weight is among them is skipped.
        origins: locates the keys of the `peft` block.

    Raises:
        SelectorError: a target or exclude selects nothing.
        AdapterError: a target has an unsupported layer, a tied weight or a parent that bypasses adapters; or nothing
            is left to adapt.
    """
    origins = origins or Origins(prefix=("peft",))
    excluded = _excluded(tree, method, origins)
    left_alone = left_alone or bytearray(len(tree.modules))
    trained = trained_in_full or bytearray(len(tree.params))
    skips: dict[str, list[str]] = {}
    chosen: dict[int, tuple[str, Origin]] = {}
    problems: list[Problem] = []
    first = _first_paths(tree)
    ties = {id(tree.params[names[0]].param): names for names in tree.names_of_tensor.values()}
    for selector, indices in _candidates(tree, method, origins, problems, skips):
        indices = list(dict.fromkeys(first.get(index, (index,))[0] for index in indices))
        before = len(problems)
        label = f"target_modules {selector}" if selector else f"target_modules {ALL_LINEAR}"
        origin = selector.origin if selector else origins.at("target_modules")
        kept = [
            index
            for index in indices
            if not _skip(tree, first.get(index, (index,)), excluded, left_alone, trained, skips)
            and _is_adaptable(tree, index, first.get(index, (index,)), ties, selector, skips, problems)
        ]
        # A selector without candidates is optional, or has been refused as unsupported already.
        is_open = selector is None or (bool(indices) and not selector.optional)
        if not kept and is_open and len(problems) == before:
            problems.append(_nothing_left(label, origin, indices, tree, skips))
        for index in kept:
            chosen[index] = (f"{label} ({len(kept)} modules)" if len(kept) > 1 else label, origin)
    if problems:
        raise AdapterError.from_problems(_unique(problems))
    targets = tuple(Target(index, tree.modules[index].path, *chosen[index]) for index in sorted(chosen))
    notes = [f"not adapted, {reason}: {_some(list(dict.fromkeys(paths)))}" for reason, paths in skips.items()]
    for index in sorted(chosen):
        if index in first:
            names = " = ".join(tree.modules[other].path for other in first[index])
            notes.append(f"one module under several paths, adapted once: {names}")
    return Targets(targets, tuple(notes))


def _first_paths(tree: ModuleTree) -> Mapping[int, tuple[int, ...]]:
    """Index of each module with several paths -> all its indices, the first one leading. Empty for most models."""
    by_identity: dict[int, list[int]] = {}
    for index, ref in enumerate(tree.modules):
        by_identity.setdefault(id(ref.module), []).append(index)
    shared = (tuple(indices) for indices in by_identity.values() if len(indices) > 1)
    return {index: indices for indices in shared for index in indices}


def _excluded(tree: ModuleTree, method: PEFT, origins: Origins) -> bytearray:
    mask = bytearray(len(tree.modules))
    selectors = parse_selectors(method.exclude_modules or [], origins.below("exclude_modules"))
    for selection in require_matches(selectors, tree, need_params=False):
        for index, is_set in enumerate(selection.modules):
            if is_set:
                mask[index] = 1
    return mask


def _candidates(
    tree: ModuleTree, method: PEFT, origins: Origins, problems: list[Problem], skips: dict[str, list[str]]
) -> Iterable[tuple[Selector | None, list[int]]]:
    """For each target selector the modules to look at: the match itself, or the supported layers below a container."""
    if method.target_modules == ALL_LINEAR:
        heads = _output_heads(tree)
        supported = [
            index for index, ref in enumerate(tree.modules) if not ref.is_adapter and method.supports(ref.module)
        ]
        left_out = [index for index in supported if id(tree.modules[index].module) in heads]
        if left_out:
            reason = f"the output head (name it in target_modules instead of {ALL_LINEAR} to adapt it)"
            skips[reason] = [tree.modules[index].path for index in left_out]
        yield None, [index for index in supported if id(tree.modules[index].module) not in heads]
        return
    selectors = parse_selectors(method.target_modules, origins.below("target_modules"))
    for selector in selectors:
        if selector.selects_params:
            problems.append(
                Problem(
                    f"{selector} selects parameters, but {method.label} adapts modules",
                    str(selector.origin),
                    "names of modules such as `q_proj`",
                    "name the module that holds the parameter",
                )
            )
    if problems:
        return
    for selector, selection in zip(selectors, require_matches(selectors, tree), strict=False):
        found: list[int] = []
        unsupported: list[int] = []
        for match in selection.matches:
            below = [
                index
                for index in range(match, tree.modules[match].end)
                if selection.modules[index]
                and not tree.modules[index].is_adapter
                and method.supports(tree.modules[index].module)
            ]
            found.extend(below)
            if not below:
                unsupported.append(match)
        if unsupported:
            problems.append(_unsupported(selector, unsupported, tree, method))
        yield selector, list(dict.fromkeys(found))


def _unsupported(selector: Selector, matches: list[int], tree: ModuleTree, method: PEFT) -> Problem:
    classes = ", ".join(dict.fromkeys(type(tree.modules[index].module).__name__ for index in matches))
    paths = _some([tree.modules[index].path or "the root" for index in matches])
    return Problem(
        f"{selector} selects {paths} of class {classes}, which {method.label} cannot adapt",
        str(selector.origin),
        f"{method.method} adapts {method.supported_kinds}",
        "name a supported layer, or take it out of target_modules",
    )


def _output_heads(tree: ModuleTree) -> set[int]:
    """Identities of the output heads; a model that another module wraps tells its own."""
    heads: set[int] = set()
    for ref in tree.modules:
        # Looked up on the class: on an instance a miss costs more than the whole rest of the walk.
        if hasattr(type(ref.module), "get_output_embeddings"):
            head = ref.module.get_output_embeddings()  # type: ignore[operator]
            if isinstance(head, nn.Module):
                heads.add(id(head))
    return heads


def _skip(
    tree: ModuleTree,
    indices: tuple[int, ...],
    excluded: bytearray,
    left_alone: bytearray,
    trained: bytearray,
    skips: dict[str, list[str]],
) -> bool:
    """Whether the module under all its paths `indices` stays as it is; notes why. One path that says so is enough."""
    weights = [_weight_of(tree, index) for index in indices]
    if any(excluded[index] for index in indices):
        reason = "exclude_modules"
    elif any(left_alone[index] for index in indices):
        reason = "inside freeze_modules"
    elif any(weight is not None and trained[weight] for weight in weights):
        reason = "trained in full"
    else:
        return False
    skips.setdefault(reason, []).append(tree.modules[indices[0]].path)
    return True


def _weight_of(tree: ModuleTree, index: int) -> int | None:
    return tree.param_index.get(join_path(tree.modules[index].path, "weight"))


def _is_adaptable(
    tree: ModuleTree,
    index: int,
    indices: tuple[int, ...],
    ties: Mapping[int, tuple[int, ...]],
    selector: Selector | None,
    skips: dict[str, list[str]],
    problems: list[Problem],
) -> bool:
    """Refuse what would be a dead or wrong adapter: named targets are an error, those of `all-linear` a note."""
    ref = tree.modules[index]
    fault: tuple[str, str] | None = None
    if reader := next(filter(None, (reader_of(tree, other) for other in indices)), None):
        fault = (f"{reader} reads its weight directly, so that an adapter would do nothing", "exclude_modules")
    elif not ref.path:
        fault = ("the root of the model cannot be adapted in place of itself", "wrap it in a parent module")
    elif "forward" in ref.module.__dict__:
        fault = (
            "its forward is replaced on the instance (as by accelerate's hooks), so that an adapter would do nothing",
            "add adapters before the hooks, or exclude it",
        )
    elif tied := _tied_names(tree, index, indices, ties):
        fault = (
            f"its weight is also {tied}: merging the adapter would change both",
            "untie the weights, or exclude it",
        )
    if fault is None:
        return True
    if selector is None:
        skips.setdefault(fault[0], []).append(ref.path)
    else:
        problems.append(
            Problem(f"{ref.path or 'the root'} cannot be adapted", str(selector.origin), fault[0], fault[1])
        )
    return False


def _tied_names(tree: ModuleTree, index: int, indices: tuple[int, ...], ties: Mapping[int, tuple[int, ...]]) -> str:
    """Names that the weight has in other modules; a module that is itself shared has no other owner."""
    weight = _weight_of(tree, index)
    names = () if weight is None else ties.get(id(tree.params[weight].param), ())
    return ", ".join(tree.params[name].path for name in names if tree.params[name].owner not in indices)


def _nothing_left(
    label: str, origin: Origin, indices: list[int], tree: ModuleTree, skips: Mapping[str, list[str]]
) -> Problem:
    paths = {tree.modules[index].path for index in indices}
    reasons = [
        f"{reason}: {_some([p for p in names if p in paths])}" for reason, names in skips.items() if paths & set(names)
    ]
    return Problem(
        f"{label} is left with no module to adapt",
        str(origin),
        "\n".join(reasons) or "the model has no supported layer",
        "take it out of target_modules, or out of the list that skips it",
    )


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{len(names)} modules ({shown}{', ...' if len(names) > _MAX_NAMES else ''})" if len(names) > 1 else shown
