"""Explains why a selector selects nothing, with the nearest real names. Runs only on the way to an error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frostline.config.wording import flow, shorten_names
from frostline.errors import Problem
from frostline.selectors.kinds._text import has_wildcard, wildcard
from frostline.tree import ModuleTree

if TYPE_CHECKING:
    from frostline.selectors.selector import Kind, Selector

MAX_SUGGESTIONS = 5
_NUMBER = re.compile(r"[0-9]+")


def nearest(value: str, candidates: Sequence[str], limit: int = MAX_SUGGESTIONS) -> list[str]:
    """The candidates most like `value`, best first; those that contain its plain text come first."""
    plain = re.sub(r"[*?\[\]^$\\()|+]", "", value).strip(".")
    unique = _representatives(list(dict.fromkeys(candidates)), plain)
    containing = [name for name in unique if plain and plain.lower() in name.lower()]
    similar = difflib.get_close_matches(plain, unique, n=limit, cutoff=0.6)
    return list(dict.fromkeys(containing[:limit] + similar))[:limit]


def tails(paths: Sequence[str], num_components: int) -> list[str]:
    """The last `num_components` components of each path, each once."""
    return list(dict.fromkeys(".".join(path.split(".")[-num_components:]) for path in paths if path))


def describe_miss(selector: Selector, tree: ModuleTree, *, role: str = "", matches: Sequence[int] = ()) -> Problem:
    """The problem to report for a selector that selects nothing in `tree`."""
    label = f"`{role}` of the selector" if role else "selector"
    base_modules = [ref.path for ref in tree.modules if not ref.is_adapter]
    param_paths = [ref.path for ref in tree.params]
    narrowed = [] if matches or (selector.within is None and not selector.excepts) else _found_by_kind(selector, tree)
    if narrowed:
        refs = tree.params if selector.selects_params else tree.modules
        what = "parameters" if selector.selects_params else "modules"
        return Problem(
            f"{label} {selector} selects nothing: {selector.kind} matches {len(narrowed)} {what}, "
            f"but {'`within`' if selector.within is not None else '`except`'} leaves none of them",
            str(selector.origin),
            f"matched: {', '.join(refs[index].path or 'the root' for index in narrowed[:MAX_SUGGESTIONS])}",
            "correct `within` or `except`, or add `optional: true`",
        )
    if matches:
        names = ", ".join(tree.modules[index].path or "the root" for index in matches[:MAX_SUGGESTIONS])
        return Problem(
            f"{label} {selector} matches {len(matches)} modules, but nothing below them is left to select",
            str(selector.origin),
            f"matched: {names}",
            "choose a module that holds parameters, narrow `except`, or add `optional: true`",
        )
    if selector.selects_params:
        what, candidates = "parameters", param_paths
        tailed = _params_named(selector.kind.pattern, param_paths)
        if tailed:
            return Problem(
                f"{label} {selector} matched 0 parameters: a `param` pattern covers the full path",
                str(selector.origin),
                f"{len(tailed)} parameters end in that name, {tailed[0]} among them",
                f'write {{param: "{_full_pattern(selector.kind.pattern, tailed)}"}}',
            )
    elif selector.kind.key == "type":
        what = "modules"
        candidates = [type(ref.module).__name__ for ref in tree.modules if not ref.is_adapter]
    else:
        what, candidates = "modules", base_modules
        named = _params_meant(selector.kind.key, selector.kind.pattern, param_paths)
        if named:
            return Problem(
                f"{label} {selector} names {'a parameter' if len(named) == 1 else 'parameters'}, but here a module is "
                "meant",
                str(selector.origin),
                f"parameters of that name: {shorten_names(named, MAX_SUGGESTIONS)}",
                f"write {_as_params(selector.kind.key, selector.kind.pattern, named, param_paths)}",
            )
    if selector.kind.key == "name" and (parts := _listed(selector.kind, tree)):
        return Problem(
            f"{label} {selector} matched 0 modules: the text is one name",
            str(selector.origin),
            f"each of its parts matches: {', '.join(parts)}",
            f"write a list: {flow(parts)}",
        )
    covers = ""
    if selector.kind.key == "regex":
        covers = ": it must match the whole path"
        if wider := _wider(selector.kind.pattern, base_modules):
            text, paths = wider
            return Problem(
                f"{label} {selector} matched 0 modules{covers}",
                str(selector.origin),
                f"{text} matches {shorten_names(paths, MAX_SUGGESTIONS)}",
                f"write {flow({'regex': text})}",
            )
    pattern = selector.kind.pattern.removeprefix("*.")
    found: list[str] = []
    if selector.kind.key != "type":
        found = nearest(pattern, tails(candidates, pattern.count(".") + 1))
    found = list(dict.fromkeys(found + nearest(pattern, candidates)))[:MAX_SUGGESTIONS]
    if found:
        possible = f"nearest: {', '.join(found)}"
    elif selector.kind.key == "type":
        possible = f"classes here: {', '.join(list(dict.fromkeys(candidates))[:12])}"
    else:
        top = [ref.path for ref in (tree.modules[index] for index in tree.children(0)) if not ref.is_adapter]
        shown = ", ".join(top or param_paths[:MAX_SUGGESTIONS])
        possible = f"top level of this model: {shown}"
    return Problem(
        f"{label} {selector} matched 0 {what}{covers}",
        str(selector.origin),
        possible,
        "correct the name, or add `optional: true` if this model need not have it",
    )


def _found_by_kind(selector: Selector, tree: ModuleTree) -> list[int]:
    try:
        return selector.kind.find(tree, None)
    except LookupError:
        return []


def _listed(kind: Kind, tree: ModuleTree) -> list[str]:
    """The names of a text such as `bert, classifier`, if each of them matches; else none."""
    parts = [part.strip() for part in kind.pattern.split(",")]
    if len(parts) < 2:
        return []
    try:
        return parts if all(type(kind).parse(part, {}).find(tree, None) for part in parts) else []
    except ValueError:
        return []


def _wider(pattern: str, paths: Sequence[str]) -> tuple[str, list[str]] | None:
    """`pattern` with `.*` before it, behind it or both, whichever first matches whole paths, and what it matches."""
    core = pattern.removeprefix("^").removesuffix("$")
    core = f"({core})" if "|" in core else core
    for text in (f".*{core}", f"{core}.*", f".*{core}.*"):
        try:
            found = [path for path in paths if re.fullmatch(text, path)]
        except re.error:
            continue
        if found:
            return text, found
    return None


def _full_pattern(pattern: str, named: Sequence[str]) -> str:
    """A `param` pattern that covers the full path of all the parameters `named`, whose path `pattern` is a tail of."""
    plain = pattern.removeprefix("*.")
    if plain not in named:
        return f"*.{plain}"
    return plain if len(named) == 1 else f"*{plain}"


def _representatives(candidates: list[str], plain: str) -> list[str]:
    """Of names that differ in numbers only, those with the numbers of `plain` and else the first: blocks are alike."""
    wanted = _NUMBER.findall(plain)
    chosen: dict[str, str] = {}
    for name in candidates:
        folded = _NUMBER.sub("#", name)
        if folded not in chosen or (wanted and _NUMBER.findall(name) == wanted):
            chosen[folded] = name
    return list(chosen.values())


def _params_meant(key: str, pattern: str, param_paths: Sequence[str]) -> list[str]:
    """The parameters that a selector of modules would match if it were one of parameters."""
    if key == "regex":
        matches = re.compile(pattern).fullmatch
        return [path for path in param_paths if matches(path)]
    if not has_wildcard(pattern):
        return _params_named(pattern, param_paths)
    if key == "glob":
        return [path for path in param_paths if wildcard(pattern).fullmatch(path)]
    components = [wildcard(component) for component in pattern.split(".")]
    tails_of = {path: path.rsplit(".", len(components))[-len(components) :] for path in param_paths}
    return [
        path
        for path, tail in tails_of.items()
        if key == "name"
        and len(tail) == len(components)
        and all(component.fullmatch(part) for component, part in zip(components, tail, strict=True))
    ]


def _as_params(key: str, pattern: str, named: Sequence[str], param_paths: Sequence[str]) -> str:
    """One `param` selector of just `named`, or where no pattern says that, of the first of them."""
    tail = named[0].rpartition(".")[2]
    for text in (pattern, _full_pattern(pattern, named), f"*.{pattern}", f"*.{tail}", f"*{tail}"):
        if key != "regex" and [path for path in param_paths if wildcard(text).fullmatch(path)] == list(named):
            return f'{{param: "{text}"}}'
    return f'{{param: "{named[0]}"}}' + (", and so on" if len(named) > 1 else "")


def _params_named(pattern: str, param_paths: Sequence[str]) -> list[str]:
    plain = pattern.removeprefix("*.")
    if any(character in plain for character in "*?["):
        return []
    return [path for path in param_paths if path == plain or path.endswith("." + plain)]
