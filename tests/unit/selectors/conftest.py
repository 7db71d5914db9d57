"""A small two-tower model on which every kind of selector has something to find."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from frostline.selectors import Selection, parse_selector
from frostline.tree import ModuleTree


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2, 2)
        self.o_proj = nn.Linear(2, 2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = nn.Linear(2, 2, bias=False)
        self.norm = nn.LayerNorm(2)


class Towers(nn.Module):
    """Language tower of 12 blocks, vision tower of 4, a head; and names that merely contain those words."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "language_model": nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(12))}),
                "vision_tower": nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(4))}),
                "context_proj": nn.Linear(2, 2),
                "revision_head": nn.Linear(2, 2),
            }
        )
        self.lm_head = nn.Linear(2, 2, bias=False)


@pytest.fixture(scope="session")
def towers() -> ModuleTree:
    return ModuleTree.from_model(Towers())


def select(tree: ModuleTree, value: Any) -> Selection:
    return parse_selector(value).select(tree)


def matched(tree: ModuleTree, value: Any) -> list[str]:
    """Paths of the matched modules, or of the matched parameters."""
    selector = parse_selector(value)
    refs = tree.params if selector.selects_params else tree.modules
    return [refs[index].path for index in selector.select(tree).matches]


def param_paths(tree: ModuleTree, value: Any) -> set[str]:
    return {tree.params[index].path for index, is_set in enumerate(select(tree, value).params) if is_set}
