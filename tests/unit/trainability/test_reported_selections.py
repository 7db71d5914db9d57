"""Selections that went wrong in other tools, each on a small model that trains: just what was asked for moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import prepare, resolve
from frostline.errors import SelectorError

from .conftest import changed, optimizer_of, snapshot


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict({"q_proj": nn.Linear(3, 3), "o_proj": nn.Linear(3, 3)})
        self.mlp = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.mlp(torch.tanh(self.self_attn["o_proj"](self.self_attn["q_proj"](x)))))


class Towers(nn.Module):
    """A language tower and a vision tower of blocks of one name, a classifier and one that is called almost so."""

    def __init__(self, num_blocks: int = 12) -> None:
        super().__init__()
        self.language_model = nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(num_blocks))})
        self.vision_tower = nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(num_blocks))})
        self.classifier = nn.Linear(3, 2)
        self.aux_classifier_old = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x
        for block in self.vision_tower["layers"]:
            image = block(image)
        for block in self.language_model["layers"]:
            x = block(x + image)
        return self.classifier(x) + self.aux_classifier_old(x)


def moved(config: dict[str, Any], model: nn.Module | None = None) -> set[str]:
    """Parameters that differ after one step under `config`."""
    model, plan = prepare(model if model is not None else Towers(), freeze_config=config)
    before = snapshot(model)
    optimizer = optimizer_of(model)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert changed(model, before) == set(plan.trainable)
    return set(plan.trainable)


def only(*unfreeze: Any) -> dict[str, Any]:
    return {"freeze_modules": "*", "unfreeze_modules": list(unfreeze)}


def test_case_01_names_are_those_without_wrapper_prefixes() -> None:
    """Row 1: a full path finds its parameter inside a wrapper; an anchored pattern is refused with the real name."""
    wrapped = nn.DataParallel(Towers(1))
    assert set(resolve(wrapped, freeze_config=only({"param": "classifier.weight"})).trainable) == {"classifier.weight"}
    with pytest.raises(SelectorError, match=r'"\^classifier\.weight\$" matched 0 modules[\s\S]*nearest: classifier'):
        resolve(wrapped, freeze_config=only("^classifier.weight$"))


def test_case_02_a_pattern_of_another_architecture_is_refused_before_any_optimizer() -> None:
    """Row 2: no parameter matched is an error of the config, not an index error in the optimizer."""
    with pytest.raises(SelectorError, match=r"matched 0 modules[\s\S]*(nearest|top level of this model)"):
        prepare(Towers(1), freeze_config=only({"regex": r"transformer\.blocks\.[0-7]"}))


def test_case_03_a_slip_in_an_expression_is_refused() -> None:
    """Row 3: a misplaced anchor matches nothing, and that is said."""
    with pytest.raises(SelectorError, match=r'regex "\^\.language_model\$" matched 0 modules'):
        resolve(Towers(1), freeze_config=only({"regex": "^.language_model$"}))


def test_case_04_every_entry_must_match() -> None:
    """Row 4: of three names two are not there, and both are told."""
    config = {"freeze_modules": ["classifier", "embeddings", {"path": "layers.11"}]}
    with pytest.raises(SelectorError, match="2 problems") as caught:
        resolve(Towers(), freeze_config=config)
    assert [problem.where for problem in caught.value.problems] == [
        "freeze_config.freeze_modules[1]",
        "freeze_config.freeze_modules[2]",
    ]


def test_case_05_the_attention_of_layer_1_and_no_other() -> None:
    """Row 5: layer 1 is neither 10 nor 11, and a dot is a dot."""
    for selector in (
        "language_model.layers.1.self_attn",
        {"glob": "language_model.layers.1.self_attn"},
        {"regex": r"language_model\.layers\.1\.self_attn"},
        {"param": "language_model.layers.1.self_attn.*"},
    ):
        assert {path.rsplit(".", 2)[0] for path in moved(only(selector))} == {"language_model.layers.1.self_attn"}


def test_case_07_a_name_is_a_whole_component_and_a_slip_is_refused() -> None:
    """Row 7: `classifier` is not `aux_classifier_old`, and `clasifier` is nothing."""
    assert moved(only("classifier")) == {"classifier.weight", "classifier.bias"}
    with pytest.raises(SelectorError, match=r'"clasifier" matched 0 modules[\s\S]*nearest: classifier'):
        resolve(Towers(1), freeze_config=only("clasifier"))


def test_case_08_the_last_block_of_one_tower() -> None:
    """Row 8: a position is one of a list, so the vision tower needs no deny list; without `of` the lists are told."""
    trained = moved(only({"layers": -1, "of": "language_model.layers"}))
    assert {path.rpartition(".layers.")[0] for path in trained} == {"language_model"}
    assert {path.split(".")[2] for path in trained} == {"11"}
    within = moved(only({"layers": -1, "within": "language_model"}))
    assert within == trained
    with pytest.raises(SelectorError, match=r"the model has 2 block lists[\s\S]*add for example `of: language_model"):
        resolve(Towers(2), freeze_config=only({"layers": -1}))


def test_case_10_several_kinds_of_several_layers() -> None:
    """Row 10: `mlp` and `self_attn` of layers 1, 3 and 5."""
    within = {"layers": [1, 3, 5], "of": "language_model.layers"}
    trained = moved(only({"glob": "*.mlp", "within": within}, {"glob": "*.self_attn", "within": within}))
    assert {tuple(path.split(".")[1:4:1])[1:] for path in trained} == {
        (layer, part) for layer in "135" for part in ("mlp", "self_attn")
    }


def test_case_47_a_tied_head_alone_is_a_conflict_and_both_names_are_one_tensor() -> None:
    """Row 47: all but the head of a tied model frozen is refused with both names and rules; counted once."""
    model = nn.Module()
    model.embed_tokens, model.lm_head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    model.lm_head.weight = model.embed_tokens.weight
    with pytest.raises(SelectorError, match=r"(?s)names embed_tokens\.weight, lm_head\.weight.*\"\*\".*\"lm_head\""):
        resolve(model, freeze_config=only("lm_head"))
    plan = resolve(model, freeze_config=only("lm_head", "embed_tokens"))
    assert (plan.num_trainable, plan.num_total) == (15, 15)
