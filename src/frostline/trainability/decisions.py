"""Decisions by path, of which tied tensors have several."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from frostline.trainability.decision import Decision


class Decisions(Mapping[str, Decision]):
    """Path -> decision. Iterates over each tensor once (first name); look-up works under every name of a tied one."""

    def __init__(self, decisions: tuple[Decision, ...]) -> None:
        self._by_path = {decision.path: decision for decision in decisions}
        self._by_alias = {alias: decision for decision in decisions for alias in decision.aliases}

    def __getitem__(self, path: str) -> Decision:
        found = self._by_path.get(path)
        return found if found is not None else self._by_alias[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    # What follows is inherited as well, but made of one look-up in Python for each path.
    def __contains__(self, path: object) -> bool:
        return path in self._by_path or path in self._by_alias

    def values(self) -> ValuesView[Decision]:
        """The decision of each tensor, in definition order."""
        return self._by_path.values()

    def items(self) -> ItemsView[str, Decision]:
        """Each tensor's first name and its decision."""
        return self._by_path.items()
