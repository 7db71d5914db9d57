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
from frostline.tree import ModuleTree

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
    for selector, indices in _candidates(tree, method, origins, problems):
        label = f"target_modules {selector}" if selector else f"target_modules {ALL_LINEAR}"
        origin = selector.origin if selector else origins.at("target_modules")
        kept = [
            index
            for index in indices
            if not _skip(tree, index, excluded, left_alone, trained, skips)
            and _is_adaptable(tree, method, index, selector, skips, problems)
        ]
        if not kept and not problems and not (selector and selector.optional):
            problems.append(_nothing_left(label, origin, indices, tree, skips))
        for index in kept:
            chosen[index] = (f"{label} ({len(kept)} modules)" if len(kept) > 1 else label, origin)
    if problems:
        raise AdapterError.from_problems(_unique(problems))
    targets = tuple(Target(index, tree.modules[index].path, *chosen[index]) for index in sorted(chosen))
    notes = tuple(f"not adapted, {reason}: {_some(list(dict.fromkeys(paths)))}" for reason, paths in skips.items())
    return Targets(targets, notes)


def _excluded(tree: ModuleTree, method: PEFT, origins: Origins) -> bytearray:
    mask = bytearray(len(tree.modules))
    selectors = parse_selectors(method.exclude_modules or [], origins.below("exclude_modules"))
    for selection in require_matches(selectors, tree, need_params=False):
        for index, is_set in enumerate(selection.modules):
            if is_set:
                mask[index] = 1
    return mask


def _candidates(
    tree: ModuleTree, method: PEFT, origins: Origins, problems: list[Problem]
) -> Iterable[tuple[Selector | None, list[int]]]:
    """For each target selector the modules to look at: the match itself, or the supported layers below a container."""
    if method.target_modules == ALL_LINEAR:
        head = _output_head(tree)
        supported = [
            index for index, ref in enumerate(tree.modules) if not ref.is_adapter and method.supports(ref.module)
        ]
        yield None, [index for index in supported if tree.modules[index].module is not head]
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


def _output_head(tree: ModuleTree) -> nn.Module | None:
    getter = getattr(tree.modules[0].module, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    return head if isinstance(head, nn.Module) else None


def _skip(
    tree: ModuleTree,
    index: int,
    excluded: bytearray,
    left_alone: bytearray,
    trained: bytearray,
    skips: dict[str, list[str]],
) -> bool:
    ref = tree.modules[index]
    weight = tree.param_index.get(f"{ref.path}.weight" if ref.path else "weight")
    if excluded[index]:
        reason = "exclude_modules"
    elif left_alone[index]:
        reason = "inside freeze_modules"
    elif weight is not None and trained[weight]:
        reason = "trained in full"
    else:
        return False
    skips.setdefault(reason, []).append(ref.path)
    return True


def _is_adaptable(
    tree: ModuleTree,
    method: PEFT,
    index: int,
    selector: Selector | None,
    skips: dict[str, list[str]],
    problems: list[Problem],
) -> bool:
    """Refuse what would be a dead or wrong adapter: named targets are an error, those of `all-linear` a note."""
    ref = tree.modules[index]
    fault: tuple[str, str] | None = None
    if reader := reader_of(tree, index):
        fault = (f"{reader} reads its weight directly, so that an adapter would do nothing", "exclude_modules")
    elif not ref.path:
        fault = ("the root of the model cannot be adapted in place of itself", "wrap it in a parent module")
    elif tied := _tied_names(tree, index):
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


def _tied_names(tree: ModuleTree, index: int) -> str:
    ref = tree.modules[index]
    own = set(range(ref.param_start, ref.own_param_end))
    for names in tree.names_of_tensor.values():
        if own & set(names):
            others = [tree.params[name].path for name in names if name not in own]
            if others:
                return ", ".join(others)
    return ""


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
