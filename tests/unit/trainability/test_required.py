"""What the framework keeps frozen: found from the modules, last of all rules, never thawed, never adapted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, prepare, resolve
from frostline.errors import AdapterError, ConfigError
from frostline.trainability.required import REQUIREMENTS, find_required
from frostline.tree import ModuleTree

DEAD = ("k_proj", "v_proj", "k_norm", "v_norm")


class Attention(nn.Module):
    def __init__(self, shared: bool | None) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(2, 2, bias=False))
        self.k_norm = nn.LayerNorm(2, bias=False)
        self.v_norm = nn.LayerNorm(2, bias=False)
        if shared is not None:
            self.is_kv_shared_layer = shared


class LightningIndexer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.index_topk = 3
        self.wk = nn.Linear(2, 2, bias=False)
        self.weights_proj = nn.Linear(2, 1, bias=False)


class LM(nn.Module):
    """Layers that share keys say so themselves (`said`), or a config says how many at the end do."""

    def __init__(
        self, said: list[bool] | None = None, config: Any = None, indexer: type[nn.Module] | None = None
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for index in range(4):
            block = nn.Module()
            block.self_attn = Attention(said[index] if said else None)
            if indexer is not None:
                block.self_attn.indexer = indexer()
            blocks.append(block)
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(2, 2)
        if config is not None:
            self.config = config


def dead_of(*layers: int) -> set[str]:
    return {f"layers.{index}.self_attn.{name}.weight" for index in layers for name in DEAD}


CONFIG = SimpleNamespace(num_hidden_layers=4, num_kv_shared_layers=2)


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (LM(said=[False, False, True, True]), (2, 3)),
        (LM(config=CONFIG), (2, 3)),
        (LM(config=SimpleNamespace(text_config=CONFIG)), (2, 3)),
        # What a module says of itself counts before the config.
        (LM(said=[False, False, False, True], config=CONFIG), (3,)),
        (LM(config=SimpleNamespace(num_hidden_layers=4, num_kv_shared_layers=0)), ()),
        (LM(config=SimpleNamespace(num_hidden_layers=4, num_kv_shared_layers=4)), ()),
        (LM(config=SimpleNamespace(num_hidden_layers=9, num_kv_shared_layers=8)), ()),
        (LM(config=SimpleNamespace(num_hidden_layers=None, num_kv_shared_layers="2")), ()),
        (LM(), ()),
    ],
)
def test_case_16_dead_projections_are_found_from_the_modules_or_the_config(model: LM, layers: tuple[int, ...]) -> None:
    """Row 16: what no forward reaches is frozen, so that the optimizer never holds it."""
    plan = resolve(model)
    assert set(plan.frozen) == dead_of(*layers)
    for path in plan.frozen:
        assert plan.decisions[path].rule.kind == "required"
    assert len([note for note in plan.notes if "stay frozen" in note]) == (1 if layers else 0)


def test_a_vision_tower_beside_a_language_model_that_shares_keys_is_not_touched() -> None:
    tower = LM(config=SimpleNamespace(num_hidden_layers=4))
    model = nn.ModuleDict({"vision": tower, "text": LM(config=CONFIG)})
    model.config = SimpleNamespace(text_config=CONFIG)
    assert {path.partition(".")[0] for path in resolve(model).frozen} == {"text"}


def test_models_that_build_no_dead_projection_are_tolerated() -> None:
    model = LM(config=CONFIG)
    for index in (2, 3):
        for name in DEAD:
            delattr(model.layers[index].self_attn, name)
    assert resolve(model).frozen == ()


@pytest.mark.parametrize(
    ("cls", "is_found"),
    [
        (LightningIndexer, True),
        (type("SubIndexer", (LightningIndexer,), {}), True),
        (type("LightningRouter", (LightningIndexer,), {}), False),
        (type("PlainIndexer", (nn.Linear,), {"__init__": lambda self: nn.Linear.__init__(self, 2, 2)}), False),
    ],
)
def test_top_k_indexers_are_found_by_class_name_and_attribute(cls: type[nn.Module], is_found: bool) -> None:
    plan = resolve(LM(indexer=cls))
    assert any(".indexer." in path for path in plan.frozen) is is_found
    if is_found:
        parts = ("wk", "weights_proj")
        assert plan.notes == (
            "8 parameters stay frozen: it only chooses the top-k keys, and a choice has no gradient ("
            + ", ".join(f"layers.{n}.self_attn.indexer.{part}.weight" for n in (0, 1) for part in parts)
            + ", layers.2.self_attn.indexer.wk.weight and 3 more)",
        )


def test_a_selector_that_thaws_one_is_told_that_it_stays_frozen_and_why() -> None:
    plan = resolve(LM(config=CONFIG), freeze_config={"freeze_modules": "*", "unfreeze_modules": [{"layers": -1}]})
    assert set(plan.trainable) == {f"layers.3.self_attn.{name}.weight" for name in ("q_proj", "o_proj")}
    (note,) = (note for note in plan.notes if "stay frozen" in note)
    assert note.startswith(
        "4 parameters stay frozen although unfreeze_modules layers -1 reaches there: this layer takes keys and values"
    )
    one = resolve(LM(config=CONFIG), freeze_config={"unfreeze_modules": [{"param": "layers.3.*.k_norm.*"}]})
    assert any(note.startswith("1 parameter stays frozen although unfreeze_modules param") for note in one.notes)


def test_thawing_nothing_else_is_an_error() -> None:
    config = {"freeze_modules": "*", "unfreeze_modules": [{"path": "layers.3.self_attn.k_proj"}]}
    with pytest.raises(ConfigError, match=r"nothing trains[\s\S]*8 by stays frozen: this layer takes keys and values"):
        resolve(LM(config=CONFIG), freeze_config=config)


def test_with_peft_nothing_is_injected_there_and_the_note_counts() -> None:
    method = LoRA(rank=1, target_modules=["k_proj", "q_proj"])
    model, plan = prepare(LM(config=CONFIG), peft=method)
    adapted = {path.partition(".self_attn.")[::2] for path in plan.trainable if "lora_A" in path}
    assert {(block, rest.partition(".")[0]) for block, rest in adapted} == {
        *((f"layers.{n}", "q_proj") for n in range(4)),
        *((f"layers.{n}", "k_proj") for n in range(2)),
    }
    assert any(
        note.startswith("not adapted, stays frozen (this layer takes keys and values") and "2 modules" in note
        for note in plan.notes
    )
    assert plan.decisions["layers.3.self_attn.v_proj.weight"].rule.kind == "required"
    assert resolve(model, peft=method) == plan


def test_a_target_that_reaches_nothing_else_is_an_error() -> None:
    with pytest.raises(AdapterError, match=r"left with no module to adapt[\s\S]*stays frozen \(it only chooses"):
        resolve(LM(indexer=LightningIndexer), peft=LoRA(target_modules=["wk"]))


def test_a_dead_projection_that_the_base_files_lack_is_no_frozen_new_parameter() -> None:
    plan = resolve(LM(config=CONFIG), new=["layers.3.self_attn.k_proj.weight"])
    assert "layers.3.self_attn.k_proj.weight" in plan.frozen


def test_a_tensor_that_another_module_uses_too_gets_a_gradient_there() -> None:
    model = LM(config=CONFIG)
    model.layers[3].self_attn.k_proj.weight = model.layers[0].self_attn.k_proj.weight
    plan = resolve(model)
    assert plan.decisions["layers.3.self_attn.k_proj.weight"].trains
    assert set(plan.frozen) == dead_of(2, 3) - {"layers.3.self_attn.k_proj.weight"}


def test_what_a_step_adds_there_is_frozen_too() -> None:
    model, plan = prepare(LM(indexer=LightningIndexer))
    model.layers[0].self_attn.indexer.wk = nn.Sequential(nn.Linear(2, 2, bias=False))
    bound = plan.bind(model, step="a replacement")
    assert bound.decisions["layers.0.self_attn.indexer.wk.0.weight"].rule.kind == "required"
    assert not model.layers[0].self_attn.indexer.wk[0].weight.requires_grad


def test_the_table_is_right_about_a_real_sparse_attention() -> None:
    """What the table freezes in a tiny DeepSeek V3.2 is just what gets no gradient there."""
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    config = DeepseekV32Config(
        vocab_size=16, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
        v_head_dim=4, index_n_heads=2, index_head_dim=8, index_topk=2,
    )  # fmt: skip
    model = DeepseekV32ForCausalLM(config)
    ids = torch.arange(6)[None]
    logits: Tensor = model(input_ids=ids).logits
    logits.square().sum().backward()
    without = {path for path, param in model.named_parameters() if param.grad is None}
    tree = ModuleTree.from_model(model)
    assert {tree.params[index].path for index in find_required(tree).params} == without != set()


def test_every_row_of_the_table_has_a_reason() -> None:
    assert all(row.reason and row.rule.kind == "required" for row in REQUIREMENTS)


def test_what_stays_frozen_is_named_in_the_order_of_the_model() -> None:
    model = LM(said=[False, False, True, True])
    plan = resolve(model, freeze_config={"unfreeze_modules": ["layers"]})
    note = next(note for note in plan.notes if "8 parameters stay frozen" in note)
    first = [f"layers.2.self_attn.{name}.weight" for name in DEAD]
    assert f"({', '.join(first)}, layers.3.self_attn.k_proj.weight and 3 more)" in note
