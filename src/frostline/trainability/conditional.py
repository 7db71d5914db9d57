"""Which parameters may stay without a gradient in single steps: what a config tags, and experts without being told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from frostline.config.wording import shorten_names
from frostline.selectors import Selection, Selector
from frostline.trainability.decision import Decision
from frostline.tree import ModuleTree

#: Names of containers of modules of which each input uses a few; known without a tag where they are such a container.
EXPERT_CONTAINERS = ("experts",)


@dataclass(frozen=True)
class Conditional:
    """Masks over the parameters of one tree.

    Attributes:
        tagged: selected by an entry with `conditional: true`, or the adapter of a target that was.
        experts: below a container of experts.
    """

    tagged: bytearray
    experts: bytearray

    @cached_property
    def mask(self) -> bytes:
        """Both."""
        size = len(self.tagged)
        joined = int.from_bytes(self.tagged, "little") | int.from_bytes(self.experts, "little")
        return joined.to_bytes(size, "little")

    def __getitem__(self, index: int) -> bool:
        return bool(self.tagged[index] or self.experts[index])


def find_conditional(
    tree: ModuleTree, thawing: Iterable[tuple[Selector, Selection]], adapted: frozenset[str] = frozenset()
) -> Conditional:
    """The masks.

    Args:
        thawing: the entries of `unfreeze_modules` with what they select.
        adapted: paths of the adapted modules whose target selector is tagged.
    """
    size = len(tree.params)
    tagged, experts = bytearray(size), bytearray(size)
    for selector, selection in thawing:
        if selector.conditional:
            for index, is_set in enumerate(selection.params):
                if is_set:
                    tagged[index] = 1
    if adapted:
        for index in tree.adapter_params:
            owner = tree.params[index].owner
            while tree.modules[owner].is_adapter:
                owner = tree.modules[owner].parent
            if tree.modules[owner].path in adapted:
                tagged[index] = 1
    for ref in (tree.modules[index] for name in EXPERT_CONTAINERS for index in tree.modules_named.get(name, ())):
        # Fused weights of experts are one module: used whole in each step, they get zeros for what was not chosen.
        if isinstance(ref.module, (nn.ModuleList, nn.ModuleDict)):
            experts[ref.param_start : ref.param_end] = b"\x01" * (ref.param_end - ref.param_start)
    return Conditional(tagged, experts)


def expert_notes(decisions: Iterable[Decision], tree: ModuleTree, conditional: Conditional) -> Iterator[str]:
    """A remark with the number of trained tensors that are conditional only because they are experts."""
    told = [
        entry.path
        for entry in decisions
        if entry.conditional
        and entry.trains
        and (index := tree.param_index.get(entry.path)) is not None  # rows of a table are not in the tree yet
        and conditional.experts[index]
        and not conditional.tagged[index]
    ]
    if told:
        yield (
            f"{len(told):,} trained tensors below a container named experts may have no gradient in single steps: "
            f"conditional without a tag ({shorten_names(told, 2)})"
        )
