"""Which rows of a parameter train, where not all of them do: the overlay of the freeze config, row by row.

What trains is a parameter of its own, `<module>.trained_rows`, laid over the table, which stays frozen. Plain numbers:
knows no layer and touches no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frostline.errors import Problem, SelectorError
from frostline.selectors import Selector
from frostline.tree import TRAINED_ROWS, ModuleTree, join_path

Rows = tuple[int, ...]


def overlay(
    trains: bool, rows: Rows | None, chosen: Sequence[int], count: int, *, adds: bool
) -> tuple[bool, Rows | None]:
    """(trains, rows) of a parameter of `count` rows after `chosen` ones were thawed (`adds`) or frozen.

    `rows` is None where all rows (`trains`) or none of them do.
    """
    current = set(range(count)) if trains and rows is None else set(rows or ())
    after = current.union(chosen) if adds else current.difference(chosen)
    if len(after) in (0, count):
        return bool(after), None
    return True, tuple(sorted(after))


def rows_path(weight_path: str) -> str:
    """Path of the parameter that holds the trained rows of the weight at `weight_path`."""
    return join_path(weight_path.rpartition(".")[0], TRAINED_ROWS)


def show_rows(rows: Iterable[int]) -> str:
    """Sorted indices as slices: `32000:32005, 7` for five in a row and a single one, in their order."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1]:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return ", ".join(str(start) if stop == start + 1 else f"{start}:{stop}" for start, stop in runs)


def named_in_rows(tree: ModuleTree, selectors: Iterable[Selector]) -> list[tuple[int, Selector]]:
    """(index of the parameter, selector) for every parameter of which a selector names rows, tied names included.

    Selectors that cannot be applied are left out: `resolve_plan` refuses them.
    """
    ties = {index: names for names in tree.names_of_tensor.values() for index in names}
    found: dict[int, Selector] = {}
    for selector in selectors:
        if not selector.has_rows:
            continue
        try:
            matches = selector.select(tree).matches
        except SelectorError:
            continue
        for match in matches:
            for index in ties.get(match, (match,)):
                found.setdefault(index, selector)
    return list(found.items())


def rows_in_phase(path: str, selector: Selector) -> Problem:
    """A phase cannot change what trains of a table whose rows are named."""
    return Problem(
        f"{selector} of a phase reaches {path}, of which the freeze_config trains single rows",
        str(selector.origin),
        "the same rows over the whole run",
        f'leave it out of the phase: `except: [{{param: "{path}"}}]`',
    )


def without_effect(path: str, selector: Selector, by: object) -> Problem:
    """Rows are thawed where the whole parameter trains already: surely not what was meant."""
    return Problem(
        f"{selector} thaws rows of {path}, all of which trains anyway",
        str(selector.origin),
        f"it trains by {by}",
        f'freeze the rest of it: `freeze_modules: [{{param: "{path}"}}]`; or remove `rows` to train all of it',
    )


def rows_of_new(paths: Iterable[str], selector: Selector) -> Problem:
    """A parameter that no file of the base holds would keep rows that nobody ever trained or saved."""
    return Problem(
        f"{selector} names rows of {', '.join(paths)}, which is new (not in the base files)",
        str(selector.origin),
        "rows of parameters that the base files hold; new ones train in full",
        "remove `rows`",
    )
