"""What the framework keeps frozen whatever a config says, since it can never get a gradient: one table with reasons.

A part is recognized by what its modules say of themselves (attributes, `config`), never by a model's name, and a model
that lacks it costs one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from frostline.config.wording import shorten_names
from frostline.trainability.decision import Rule
from frostline.tree import ModuleTree


@dataclass(frozen=True)
class Requirement:
    """One row of the table.

    Attributes:
        reason: why no gradient ever arrives there, for notes.
        find: indices of the modules in a tree that are such a part, each with its subtree.
    """

    reason: str
    find: Callable[[ModuleTree], Iterable[int]]

    @property
    def rule(self) -> Rule:
        """The rule of the parameters that it decides."""
        return Rule("required", f"stays frozen: {self.reason}")


_PROJECTIONS = ("k_proj", "v_proj", "k_norm", "v_norm")


def _dead_projections(tree: ModuleTree) -> Iterator[int]:
    """Key and value projections and norms of attention layers that reuse the keys and values of an earlier layer.

    Earlier releases of transformers build them for Gemma 3n and Gemma 4, and so do other packages' models.
    """
    for index in sorted(index for name in _PROJECTIONS for index in tree.modules_named.get(name, ())):
        parent = tree.modules[index].parent
        if parent >= 0 and _shares_keys(tree, parent):
            yield index


def _shares_keys(tree: ModuleTree, attention: int) -> bool:
    said = getattr(tree.modules[attention].module, "is_kv_shared_layer", None)
    if isinstance(said, bool):
        return said
    config = _nearest_config(tree, attention)
    num_layers, num_shared = _number(config, "num_hidden_layers"), _number(config, "num_kv_shared_layers")
    position = _position(tree, attention, num_layers)
    # All of them sharing would leave nothing to share.
    return 0 < num_shared < num_layers and position is not None and position >= num_layers - num_shared


def _nearest_config(tree: ModuleTree, index: int) -> Any:
    while index >= 0:
        config = getattr(tree.modules[index].module, "config", None)
        if config is not None:
            return getattr(config, "text_config", None) or config
        index = tree.modules[index].parent
    return None


def _position(tree: ModuleTree, index: int, num_layers: int) -> int | None:
    """Position of the block that holds module `index`, in a list of `num_layers` blocks."""
    while (parent := tree.modules[index].parent) >= 0:
        blocks = tree.modules[parent].module
        if isinstance(blocks, nn.ModuleList) and len(blocks) == num_layers:
            return int(tree.modules[index].name)
        index = parent
    return None


def _topk_indexers(tree: ModuleTree) -> Iterator[int]:
    """Modules that choose the keys of sparse attention, in DeepSeek V3.2 and V4, GLM 5, MiniMax M3 and their kin."""
    for index in tree.modules_named.get("indexer", ()):
        if _is_topk(tree.modules[index].module):
            yield index


def _is_topk(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Indexer") and any(
        "topk" in name.replace("_", "") and type(value) is int for name, value in vars(module).items()
    )


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, 0)
    return value if type(value) is int else 0


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("this layer takes keys and values from an earlier layer and never uses its own", _dead_projections),
    Requirement("it only chooses the top-k keys, and a choice has no gradient", _topk_indexers),
)


@dataclass(frozen=True)
class Required:
    """What stays frozen in one tree.

    Attributes:
        modules: index of each such module, also of those inside it -> its row of the table.
        params: index of each parameter all of whose names lie there -> its row of the table.
    """

    modules: Mapping[int, Requirement]
    params: Mapping[int, Requirement]


def find_required(tree: ModuleTree) -> Required:
    """Apply the table to `tree`."""
    modules: dict[int, Requirement] = {}
    params: dict[int, Requirement] = {}
    for requirement in REQUIREMENTS:
        for root in requirement.find(tree):
            ref = tree.modules[root]
            modules.update((index, requirement) for index in range(root, ref.end))
            params.update((index, requirement) for index in range(ref.param_start, ref.param_end))
    if params:
        for names in tree.names_of_tensor.values():
            # Used under another name, it gets a gradient there.
            if any(name in params for name in names) and not all(name in params for name in names):
                for name in names:
                    params.pop(name, None)
    return Required(modules, params)


def required_notes(held: Mapping[int, Rule], required: Required, tree: ModuleTree) -> Iterator[str]:
    """Remarks on what would have trained: how many, why not, and which selector asked for it.

    Args:
        held: index of each such parameter -> the rule that would have trained it.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for index, rule in held.items():
        asked = f" although {rule} reaches there" if rule.is_explicit else ""
        groups.setdefault((required.params[index].reason, asked), []).append(tree.params[index].path)
    for (reason, asked), paths in groups.items():
        count = "1 parameter stays" if len(paths) == 1 else f"{len(paths):,} parameters stay"
        yield f"{count} frozen{asked}: {reason} ({shorten_names(paths, 5)})"
