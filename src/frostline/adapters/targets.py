"""Which modules a method adapts, and what was skipped and why. Reads the tree, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from frostline.adapters.base import ALL_LINEAR, PEFT
from frostline.adapters.fused_experts import fused_expert_note
from frostline.adapters.obstacles import obstacle, weights_of
from frostline.config.origin import Origin, Origins
from frostline.config.wording import shorten_names
from frostline.errors import AdapterError, Problem, SelectorError
from frostline.selectors import OF_TRAINED, Selection, Selector, parse_selectors, require_matches
from frostline.tree import ModuleTree

_MAX_NAMES = 5
_MAX_LAYERS = 8


@dataclass(slots=True)  # not frozen, which would make it four times as dear
class Target:
    """One module to adapt: index in the tree, path, and the words and place of the selector that chose it.

    `conditional`: a selector that reaches it says that it may stay without a gradient in single steps.
    """

    index: int
    path: str
    chosen_by: str
    origin: Origin
    conditional: bool = False


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
    required: Mapping[int, str] | None = None,
    in_rows: bytearray | None = None,
    origins: Origins | None = None,
) -> Targets:
    """Resolve `target_modules` and `exclude_modules` of `method`.

    Args:
        tree: the base tree.
        left_alone: mask over modules that must stay exactly as they are.
        trained_in_full: mask over parameters that train themselves; a module whose weight is among them is skipped.
        required: index of each module that the framework keeps frozen -> why.
        in_rows: mask over parameters of which single rows train or stay frozen; likewise.
        origins: locates the keys of the `peft` block.

    Raises:
        SelectorError: a target or exclude selects nothing.
        AdapterError: a target has an unsupported layer, a tied weight, a parent that bypasses adapters or names that
            the adapter needs; an exclude takes nothing away; or nothing is left to adapt.
    """
    origins = origins or Origins(prefix=("peft",))
    excludes = _excludes(tree, method, origins)
    excluded = _union((selection.modules for _, selection in excludes), len(tree.modules))
    heads = _output_heads(tree) if method.target_modules == ALL_LINEAR else set[int]()
    left_alone = left_alone or bytearray(len(tree.modules))
    trained = trained_in_full if trained_in_full and 1 in trained_in_full else None
    in_rows = in_rows if in_rows and 1 in in_rows else None
    skips: dict[str, list[str]] = {}
    chosen: dict[int, tuple[str, Origin]] = {}
    conditional: set[int] = set()
    problems: list[Problem] = []
    first = _first_paths(tree)
    ties = {id(tree.params[names[0]].param): names for names in tree.names_of_tensor.values()}
    reached: set[int] = set()
    for selector, indices in _candidates(tree, method, origins, problems):
        reached.update(other for index in indices for other in first.get(index, (index,)))
        indices = list(dict.fromkeys(first.get(index, (index,))[0] for index in indices))
        before = len(problems)
        label = f"target_modules {selector}" if selector else f"target_modules {ALL_LINEAR}"
        origin = selector.origin if selector else origins.at("target_modules")
        kept = [
            index
            for index in indices
            if not _skip(
                tree, first.get(index, (index,)), excluded, left_alone, trained, in_rows, heads, required or {}, skips
            )
            and _is_adaptable(tree, index, first.get(index, (index,)), ties, method, selector, skips, problems)
        ]
        # A selector without candidates is optional, or has been refused as unsupported already.
        is_open = selector is None or (bool(indices) and not selector.optional)
        if not kept and is_open and len(problems) == before:
            problems.append(_nothing_left(label, origin, indices, tree, skips))
        for index in kept:
            chosen[index] = (f"{label} ({len(kept)} modules)" if len(kept) > 1 else label, origin)
        if selector is not None and selector.conditional:
            conditional.update(kept)
    # After another problem it is not known what the targets reach.
    problems = problems or list(_dead_excludes(tree, excludes, reached))
    if problems:
        raise AdapterError.from_problems(_unique(problems))
    targets = tuple(
        Target(index, tree.modules[index].path, *chosen[index], index in conditional) for index in sorted(chosen)
    )
    notes = [f"not adapted, {reason}: {_counted(list(dict.fromkeys(paths)))}" for reason, paths in skips.items()]
    if method.target_modules == ALL_LINEAR:
        notes += filter(None, [fused_expert_note(tree, method, _union((excluded, left_alone), len(excluded)), trained)])
    for index in sorted(chosen):
        if index in first:
            names = " = ".join(tree.modules[other].path for other in first[index])
            notes.append(f"one module under several paths, adapted once: {names}")
    remarks: dict[str, list[str]] = {}
    for target in targets:
        if remark := method.remark(tree.modules[target.index].module):
            remarks.setdefault(remark, []).append(target.path)
    notes.extend(f"{remark}: {_some(paths)}" for remark, paths in remarks.items())
    return Targets(targets, tuple(notes))


def _first_paths(tree: ModuleTree) -> Mapping[int, tuple[int, ...]]:
    """Index of each module with several paths -> all its indices, the first one leading. Empty for most models."""
    by_identity: dict[int, list[int]] = {}
    if len({id(ref.module) for ref in tree.modules}) == len(tree.modules):
        return {}
    for index, ref in enumerate(tree.modules):
        by_identity.setdefault(id(ref.module), []).append(index)
    shared = (tuple(indices) for indices in by_identity.values() if len(indices) > 1)
    return {index: indices for indices in shared for index in indices}


def _excludes(tree: ModuleTree, method: PEFT, origins: Origins) -> list[tuple[Selector, Selection]]:
    selectors = parse_selectors(method.exclude_modules or [], origins.below("exclude_modules"))
    return list(zip(selectors, require_matches(selectors, tree, need_params=False), strict=True))


def _union(masks: Iterable[bytearray], size: int) -> bytearray:
    union = bytearray(size)
    number = 0
    for mask in masks:  # bytes of 0 and 1, as one long number each
        number |= int.from_bytes(mask, "little")
    union[:] = number.to_bytes(size, "little")
    return union


def _dead_excludes(
    tree: ModuleTree, excludes: Iterable[tuple[Selector, Selection]], reached: set[int]
) -> Iterable[Problem]:
    """Excludes that take nothing away: most likely one of the two lists does not say what was meant."""
    for selector, selection in excludes:
        if selector.optional or any(selection.modules[index] for index in reached):
            continue
        refs = tree.params if selector.selects_params else tree.modules
        matched = _some([refs[index].path or "the root" for index in selection.matches])
        targets = _some([tree.modules[index].path or "the root" for index in sorted(reached)])
        yield Problem(
            f"exclude_modules {selector} takes nothing away: no target is among what it matches",
            str(selector.origin),
            f"it matches {matched}\ntarget_modules reaches {targets or 'nothing'}",
            "remove it, correct it or target_modules, or add `optional: true`",
        )


def _candidates(
    tree: ModuleTree, method: PEFT, origins: Origins, problems: list[Problem]
) -> Iterable[tuple[Selector | None, list[int]]]:
    """For each target selector the modules to look at: the match itself, or the supported layers below a container."""
    if method.target_modules == ALL_LINEAR:
        yield (
            None,
            [index for index, ref in enumerate(tree.modules) if not ref.is_adapter and method.supports(ref.module)],
        )
        return
    selectors = parse_selectors(method.target_modules, origins.below("target_modules"), also=OF_TRAINED)
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
    try:
        selections = require_matches(selectors, tree)
    except SelectorError as error:
        raise SelectorError.from_problems(_with_layers(problem, tree, method) for problem in error.problems) from None
    for selector, selection in zip(selectors, selections, strict=False):
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


def _with_layers(problem: Problem, tree: ModuleTree, method: PEFT) -> Problem:
    """`problem` of a target that no module has the name of, with the names of the layers that can be adapted."""
    if not problem.what.startswith("selector ") or "matched 0 modules" not in problem.what:
        return problem
    counts: dict[str, int] = {}
    for ref in tree.modules:
        if ref.path and not ref.is_adapter and method.supports(ref.module):
            # A number alone says nothing: `classifier.0`.
            name = ".".join(ref.path.split(".")[-2:]) if ref.name.isdigit() else ref.name
            counts[name] = counts.get(name, 0) + 1
    near = problem.possible.partition("nearest: ")[2].split(", ")
    if not counts or any(name.rpartition(".")[2] in counts for name in near):
        return problem
    shown = shorten_names([f"{name} ({count})" for name, count in counts.items()], _MAX_LAYERS)
    kept = f"{problem.possible}\n" if problem.possible.startswith("nearest: ") else ""
    layers = f"{kept}layers that {method.label} adapts here: {shown}; or all of them: `target_modules: {ALL_LINEAR}`"
    return replace(problem, possible=layers)


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
    trained: bytearray | None,
    in_rows: bytearray | None,
    heads: set[int],
    required: Mapping[int, str],
    skips: dict[str, list[str]],
) -> bool:
    """Whether the module under all its paths `indices` stays as it is; notes why. One path that says so is enough."""
    if _any_set(excluded, indices):
        reason = "exclude_modules"
    elif required and all(index in required for index in indices):
        reason = f"stays frozen ({required[indices[0]]})"
    elif trained is not None and any(_all_set(trained, weights_of(tree, index)) for index in indices):
        reason = "trained in full"
    elif in_rows is not None and any(_any_set(in_rows, weights_of(tree, index)) for index in indices):
        reason = "`rows` of its weight are named in freeze_config"
    elif _any_set(left_alone, indices):
        reason = "inside freeze_modules"
    elif id(tree.modules[indices[0]].module) in heads:
        reason = f"the output head (name it in target_modules instead of {ALL_LINEAR} to adapt it)"
    else:
        return False
    skips.setdefault(reason, []).append(tree.modules[indices[0]].path)
    return True


def _any_set(mask: bytearray, indices: Sequence[int]) -> bool:
    return mask[indices[0]] == 1 if len(indices) == 1 else any(mask[index] for index in indices)


def _all_set(mask: bytearray, indices: Sequence[int]) -> bool:
    return bool(indices) and all(mask[index] for index in indices)


def _is_adaptable(
    tree: ModuleTree,
    index: int,
    indices: tuple[int, ...],
    ties: Mapping[int, tuple[int, ...]],
    method: PEFT,
    selector: Selector | None,
    skips: dict[str, list[str]],
    problems: list[Problem],
) -> bool:
    """Refuse what would be a dead or wrong adapter: named targets are an error, those of `all-linear` a note."""
    found = obstacle(tree, index, indices, ties, method)
    if found is None:
        return True
    reason, fix = found
    path = tree.modules[index].path or "the root"
    if selector is None:
        skips.setdefault(reason, []).append(path)
    else:
        problems.append(Problem(f"{path} cannot be adapted", str(selector.origin), reason, fix))
    return False


def _nothing_left(
    label: str, origin: Origin, indices: list[int], tree: ModuleTree, skips: Mapping[str, list[str]]
) -> Problem:
    paths = {tree.modules[index].path or "the root" for index in indices}
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


def _counted(names: list[str]) -> str:
    return _some(names) if len(names) > 1 else f"1 module ({names[0]})"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{len(names)} modules ({shown}{', ...' if len(names) > _MAX_NAMES else ''})" if len(names) > 1 else shown
