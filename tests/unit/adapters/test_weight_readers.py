from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from torch import nn

from frostline.adapters.weight_readers import WEIGHT_READERS, reader_of
from frostline.tree import ModuleTree


def test_subclasses_of_a_reader_read_too() -> None:
    class OwnAttention(nn.MultiheadAttention):
        pass

    tree = ModuleTree.from_model(nn.ModuleDict({"attention": OwnAttention(4, 2), "out_proj": nn.Linear(2, 2)}))
    found = {ref.path: reader_of(tree, index) for index, ref in enumerate(tree.modules)}
    assert found == {"": None, "attention": None, "attention.out_proj": "MultiheadAttention", "out_proj": None}


def test_every_row_of_the_table_still_stands_in_the_source() -> None:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    sources = [path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.glob("models/*/modeling_*.py")]
    rows = {name: children for name, children in WEIGHT_READERS.items() if not hasattr(nn, name)}
    assert len(rows) >= 10
    for name, children in rows.items():
        bodies = [
            part for text in sources for part in re.findall(rf"^class {name}\(.*?(?=^class |\Z)", text, re.M | re.S)
        ]
        if not bodies:
            continue  # of another version of transformers
        for child in children:
            assert any(f"self.{child}.weight" in body for body in bodies), f"{name} no longer reads {child}"


@pytest.mark.parametrize("name", ["MultiheadAttention", "TransformerEncoderLayer"])
def test_torch_s_own_are_in_the_table(name: str) -> None:
    assert name in WEIGHT_READERS
