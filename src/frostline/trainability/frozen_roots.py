"""Which subtrees are held in evaluation mode while the rest trains. Reads the rows of a plan, no model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from frostline.trainability.decision import Decision
from frostline.trainability.rows import ModuleRow


def find_frozen_roots(
    modules: Sequence[ModuleRow],
    decisions: Iterable[Decision],
    frozen_mode: str,
    trained: Collection[str] | None = None,
    modes: Sequence[Sequence[str | None]] = (),
) -> tuple[str, ...]:
    """Paths of the maximal subtrees that hold parameters of which none trains, and that are to stay still.

    Args:
        frozen_mode: mode of the modules of which no selector says another.
        trained: paths that count as trained; None for those that the decisions let train.
        modes: for each phase that counts, the mode that selectors give each module (empty: none), in place of those of
            the rows; a module is to stay still only where it is in all of them.
    """
    frozen = _frozen_modules(modules, decisions, trained)
    # Number of modules before each index that are to follow the model, so that a subtree is judged in one step.
    follows = bytearray(len(modules))
    for phase in modes or ([row.frozen_mode for row in modules],):
        if any(phase):
            for index, mode in enumerate(phase):
                follows[index] |= (mode or frozen_mode) != "eval"
        elif frozen_mode != "eval":
            follows = bytearray(b"\x01") * len(modules)
    following = [0, *accumulate(follows)]
    roots: list[str] = []
    index = 0
    while index < len(modules):
        end = modules[index].end
        if frozen[index] and following[end] == following[index]:
            roots.append(modules[index].path)
            index = end
        else:
            index += 1
    return tuple(roots)


def _frozen_modules(
    modules: Sequence[ModuleRow], decisions: Iterable[Decision], paths: Collection[str] | None
) -> bytearray:
    """Mask: inside a subtree with parameters of which none trains. A dropout there is frozen, elsewhere it is not."""
    # Number of trained names before each index, so that a subtree is judged in one step.
    trained = [0] * (len(modules) + 1)
    owner_of = {row.path: index for index, row in enumerate(modules)}
    for entry in decisions:
        if entry.kind == "adapter" or (entry.trains if paths is None else entry.path in paths):
            for name in (entry.path, *entry.aliases):
                trained[_owner(name, owner_of) + 1] += 1
    trained = list(accumulate(trained))
    frozen = bytearray(len(modules))
    index = 0
    while index < len(modules):
        end = modules[index].end
        if modules[index].has_params and trained[end] == trained[index]:
            frozen[index:end] = b"\x01" * (end - index)
            index = end
        else:
            index += 1
    return frozen


def _owner(name: str, owner_of: Mapping[str, int]) -> int:
    """Index of the module that holds parameter `name`; a planned adapter parameter counts for its base module."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in owner_of:
            return owner_of[path]
    return 0
