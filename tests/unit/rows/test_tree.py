"""The tree of a model with trained rows: which parameter they are, and the same tree without them."""

from __future__ import annotations

import frostline as fl
from frostline.tree import ModuleTree

from .conftest import rows_config, table


def test_the_tree_without_rows_is_that_of_the_bare_model() -> None:
    bare = ModuleTree.from_model(table(bias=True))
    model, _ = fl.prepare(table(bias=True), freeze_config=rows_config(head=True))
    tree = ModuleTree.from_model(model)
    rows = [ref.path for ref in tree.params if ref.is_rows]
    assert rows == ["embed_tokens.trained_rows", "lm_head.trained_rows"]
    assert [tree.params[index].path for index in tree.adapter_params] == rows
    without = tree.without_rows()
    assert [ref.path for ref in without.params] == [ref.path for ref in bare.params]
    for ours, theirs in zip(without.modules, bare.modules, strict=True):
        assert (ours.path, ours.end, ours.param_start, ours.own_param_end, ours.param_end) == (
            theirs.path,
            theirs.end,
            theirs.param_start,
            theirs.own_param_end,
            theirs.param_end,
        )
    assert bare.without_rows() is bare
