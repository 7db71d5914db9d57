"""Parses config values into selectors. Knows YAML shapes, not models: matching comes later."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from frostline.config.origin import Key, Origins
from frostline.config.wording import flow
from frostline.errors import Problem, SelectorError
from frostline.selectors.selector import Kind, Selector, known_kinds

_MODIFIERS = ("within", "except", "optional")
_BARE_KIND = "name"  # a bare string; not writable as a key
# What people call our keys; asked before any guess by spelling.
_SYNONYMS = {
    **dict.fromkeys(("name", "module", "modules", "tail", "suffix"), "bare text, as in `- encoder`"),
    **dict.fromkeys(("pattern", "re", "regexp"), "regex"),
    **dict.fromkeys(("class", "cls", "kind", "module_type", "instance"), "type"),
    **dict.fromkeys(("parameter", "parameters", "params", "weight", "tensor"), "param"),
    **dict.fromkeys(("layer", "block", "blocks", "index", "indices"), "layers"),
    **dict.fromkeys(("exclude", "excluding", "without", "not", "but"), "except"),
    **dict.fromkeys(("in", "inside", "under", "below", "scope"), "within"),
    **dict.fromkeys(("required", "strict", "missing_ok"), "optional"),
}

# Modifiers that mean something in some lists only; each list passes those that it reads as `also`.
OF_FROZEN = frozenset({"frozen_mode"})
OF_TRAINED = frozenset({"conditional"})
OF_ROWS = frozenset({"rows"})  # an option of `param`
_PLACES = {
    "frozen_mode": (
        "entries of freeze_modules, where it says how frozen modules behave",
        "move it to the entry of freeze_modules that freezes these modules, or set `frozen_mode` of the whole block",
    ),
    "conditional": (
        "entries of unfreeze_modules and of peft.target_modules, where it allows steps without a gradient",
        "move it to the entry of unfreeze_modules or peft.target_modules that trains these parameters",
    ),
}


def parse_selectors(
    value: Any, origins: Origins | None = None, *, also: frozenset[str] = frozenset()
) -> tuple[Selector, ...]:
    """Selectors of a config value: a string, a mapping, or a list of them (a scalar is a one-entry list).

    Args:
        origins: locates the value's keys for messages.
        also: modifiers that this list reads besides `within`, `except` and `optional`: `OF_FROZEN`, `OF_TRAINED`;
            with `OF_ROWS` single rows of a parameter can be selected.

    Raises:
        SelectorError: one problem for each malformed entry.
    """
    is_list = isinstance(value, (list, tuple))
    entries = list(cast("Sequence[Any]", value)) if is_list else [value]
    origins = origins or Origins()
    problems: list[Problem] = []
    selectors: list[Selector] = []
    for index, entry in enumerate(entries):
        keys: tuple[Key, ...] = (index,) if is_list else ()
        selector = _parse(entry, origins.below(*keys), problems, also - OF_ROWS)
        if selector is not None and selector.has_rows and not also >= OF_ROWS:
            problems.append(_no_rows_here(selector, origins.below(*keys)))
        elif selector is not None:
            selectors.append(selector)
    if problems:
        raise SelectorError.from_problems(problems)
    return tuple(selectors)


def parse_selector(value: Any, origins: Origins | None = None) -> Selector:
    """The one selector of a string or mapping.

    Raises:
        SelectorError: the value is malformed.
    """
    problems: list[Problem] = []
    selector = _parse(value, origins or Origins(), problems)
    if selector is not None and selector.has_rows:
        problems.append(_no_rows_here(selector, origins or Origins()))
    if selector is None or problems:
        raise SelectorError.from_problems(problems)
    return selector


def selector_problems(value: Any, origins: Origins, *, also: frozenset[str] = frozenset()) -> list[Problem]:
    """The faults of a config value, for a caller that reports all problems of a file at once."""
    try:
        parse_selectors(value, origins, also=also)
    except SelectorError as error:
        return list(error.problems)
    return []


def _parse(
    value: Any, origins: Origins, problems: list[Problem], also: frozenset[str] = frozenset()
) -> Selector | None:
    where = str(origins.at())
    if isinstance(value, str):
        return _build(_BARE_KIND, value, {}, origins, problems)
    if not isinstance(value, Mapping):
        problems.append(
            Problem(
                f"{_as_written(value)} is not a selector",
                where,
                "a module name such as `encoder`, or a mapping with one of: " + ", ".join(_writable_kinds()),
                "write a name, or remove the key; `[]` selects nothing",
            )
        )
        return None
    mapping = cast("Mapping[Any, Any]", value)
    kinds = [key for key in mapping if key in _writable_kinds()]
    if len(kinds) != 1:
        known = {*_writable_kinds(), *_MODIFIERS, *also}
        unknown = [str(key) for key in mapping if key not in known]
        hints = [near for key in unknown for near in _nearest(key, known)]
        what = (
            f"a selector has one kind, but this mapping has {' and '.join(f'`{kind}`' for kind in kinds)}"
            if kinds
            else f"this mapping names no kind of selector (keys: {', '.join(str(key) for key in mapping) or 'none'})"
        )
        fix = "write two list entries, or `within:` for an intersection" if kinds else "name what to select"
        if not kinds and len(unknown) == 1 and hints and hints[0] in _writable_kinds():
            fix = f"rename `{unknown[0]}` to `{hints[0]}`"
        possible = f"nearest: {', '.join(hints)}" if hints else "kinds: " + ", ".join(_writable_kinds())
        problems.append(Problem(what, where, possible, fix))
        return None
    options = known_kinds()[kinds[0]].options
    allowed = {kinds[0], *_MODIFIERS, *also, *options}
    unknown = [key for key in mapping if key not in allowed]
    for key in unknown:
        if key in _PLACES:
            possible, fix = _PLACES[key]
            problems.append(Problem(f"`{key}` has no meaning here", str(origins.at(key)), possible, fix))
            continue
        hints = _nearest(str(key), allowed)
        problems.append(
            Problem(
                f"unknown key `{key}` in a `{kinds[0]}` selector",
                str(origins.at(key)),
                f"nearest: {hints[0]}" if hints else "keys: " + ", ".join(sorted(allowed)),
                _with_rows(kinds[0], mapping) if key == "rows" else "correct or remove the key",
            )
        )
    given = {key: mapping[key] for key in (*options, *_MODIFIERS, *also) if key in mapping}
    selector = _build(kinds[0], mapping[kinds[0]], given, origins, problems)
    return None if unknown else selector


def _build(
    kind_name: str, value: Any, extra: Mapping[str, Any], origins: Origins, problems: list[Problem]
) -> Selector | None:
    kind_type = known_kinds()[kind_name]
    count = len(problems)
    kind: Kind | None = None
    try:
        kind = kind_type.parse(value, {key: extra[key] for key in kind_type.options if key in extra})
    except SelectorError as error:
        problems.extend(error.problems)
    except ValueError as error:
        what, *rest = error.args
        keys: tuple[Key, ...] = () if kind_name == _BARE_KIND else (getattr(error, "key", kind_name),)
        problems.append(
            Problem(
                what,
                str(origins.at(*keys)),
                rest[0] if rest else f"a value that `{kind_name}` reads",
                rest[1] if len(rest) > 1 else "correct the value",
            )
        )
    within = None
    if "within" in extra:
        within = _parse(extra["within"], origins.below("within"), problems)
        if within is not None and within.selects_params:
            problems.append(
                Problem(
                    f"`within` needs modules, but {within} selects parameters",
                    str(origins.at("within")),
                    "a selector of modules: " + ", ".join(_module_kinds()),
                    "name the module that holds them",
                )
            )
    excepts: tuple[Selector, ...] = ()
    if "except" in extra:
        try:
            excepts = parse_selectors(extra["except"], origins.below("except"))
        except SelectorError as error:
            problems.extend(error.problems)
    flags = {key: extra.get(key, False) for key in ("optional", "conditional")}
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            problems.append(
                Problem(f"`{key}` is {_as_written(flag)}", str(origins.at(key)), "true or false", "correct the value")
            )
    mode = extra.get("frozen_mode", "eval")
    if mode not in ("eval", "train"):
        problems.append(
            Problem(
                f"`frozen_mode` is {_as_written(mode)}",
                str(origins.at("frozen_mode")),
                "eval (what is frozen stays still) or train (it follows the model)",
                "correct the value",
            )
        )
    if kind is None or len(problems) > count:
        return None
    return Selector(kind, within, excepts, **flags, frozen_mode=extra.get("frozen_mode"), origin=origins.at())


def _no_rows_here(selector: Selector, origins: Origins) -> Problem:
    return Problem(
        f"{selector} selects rows, which is not possible here",
        str(origins.at("rows")),
        "`rows` in freeze_config.freeze_modules and freeze_config.unfreeze_modules, for the whole run",
        "name the rows there: they train from the start to the end; for a learning rate of their own select "
        '{param: "*.trained_rows"} in optimizer.groups',
    )


def _with_rows(kind: str, mapping: Mapping[Any, Any]) -> str:
    """What to write where `rows` stands beside another kind than `param`."""
    value = mapping[kind]
    if kind not in ("path", "glob") or not isinstance(value, str):
        return 'name the parameter that has the rows: {param: "...weight", rows: ...}'
    pattern = value if value.endswith((".weight", ".bias")) else f"{value}.weight"
    return f"name the parameter that has the rows: {flow({'param': pattern, 'rows': mapping['rows']})}"


def _nearest(key: str, known: Iterable[str]) -> list[str]:
    """What `key` most likely is here: one of `known`, or how bare text is written; empty if nothing is near."""
    names = sorted(known)
    meant = _SYNONYMS.get(key.lower())
    if meant is not None and (meant in names or meant not in known_kinds()):
        return [meant]
    return difflib.get_close_matches(key, names, n=1)


def _writable_kinds() -> list[str]:
    return [key for key in known_kinds() if key != _BARE_KIND]


def _module_kinds() -> list[str]:
    return [key for key, kind in known_kinds().items() if kind.selects == "modules" and key != _BARE_KIND]


def _as_written(value: Any) -> str:
    """A wrong value in the spelling of YAML."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return repr(value)
