"""The layers: what they compute with trained rows, in which dtype, and that they stay ordinary modules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frostline as fl
from frostline.adapters import disabled, merge, remove_rows, rows_of, unmerge
from frostline.adapters.merge import unmerged_weights
from frostline.errors import AdapterError
from frostline.tree import canonical_named_parameters

from .conftest import TOKENS, VOCABULARY, WIDTH, loss_of, rows_config, scatter, table

ROWS = [3, 17, 19]


def prepared(*, tied: bool = True, rows: Any = ROWS, **options: Any) -> tuple[nn.Module, fl.TrainabilityPlan]:
    head = options.pop("head", False) or tied
    return fl.prepare(table(tied=tied, **options), freeze_config=rows_config(rows, head=head))


def with_table_replaced(model: nn.Module) -> nn.Module:
    """A plain copy of the model in which the trained rows are in the table: what they are meant to compute."""
    plain = copy.deepcopy(model)
    return fl.merge(plain)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_forward_is_bit_identical_before_training(tied: bool, dtype: torch.dtype) -> None:
    model = table(tied=tied, bias=True).to(dtype)
    before = model(TOKENS)
    fl.prepare(model, freeze_config=rows_config(ROWS, head=True))
    after = model(TOKENS)
    assert torch.equal(after, before)
    assert after.dtype == dtype
    expected = torch.float32 if dtype == torch.bfloat16 else dtype
    assert {entry.values.dtype for entry in rows_of(model).values()} == {expected}


@pytest.mark.parametrize("tied", [True, False])
def test_the_rows_count_in_look_up_and_logit_columns(tied: bool) -> None:
    model, _ = prepared(tied=tied, head=True, bias=True)
    base = table(tied=tied, bias=True)
    scatter(model)
    assert torch.allclose(model(TOKENS), with_table_replaced(model)(TOKENS), atol=1e-6)
    assert (model(TOKENS) - base(TOKENS)).abs().max() > 0.1
    other = [row for row in range(VOCABULARY) if row not in ROWS]
    unseen = torch.tensor([[0, 1, 2, 4]])
    assert torch.equal(model(unseen)[..., other], base(unseen)[..., other])


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_those_of_the_rows_of_the_whole_table(tied: bool) -> None:
    """A tied table: both uses add up in one gradient."""
    model, _ = prepared(tied=tied, head=True)
    whole = table(tied=tied)
    loss_of(model).backward()
    loss_of(whole).backward()
    for name in ("embed_tokens", "lm_head"):
        rows, weight = model.get_submodule(name).trained_rows, whole.get_submodule(name).weight
        assert isinstance(rows, nn.Parameter)
        assert isinstance(weight, nn.Parameter)
        assert rows.grad is not None
        assert weight.grad is not None
        assert torch.allclose(rows.grad, weight.grad[ROWS], atol=1e-7)
    assert tied == (model.get_submodule("embed_tokens").trained_rows is model.get_submodule("lm_head").trained_rows)


def test_gradients_reach_what_lies_before_the_head() -> None:
    """The change of the columns is part of the way back, too."""
    model, _ = fl.prepare(
        table(tied=False), freeze_config={"freeze_modules": [{"param": "lm_head.weight", "rows": ":3"}, "embed_tokens"]}
    )
    scatter(model)
    plain = with_table_replaced(model)
    plain.requires_grad_(True)
    for one in (model, plain):
        loss_of(one).backward()
    assert torch.allclose(model.get_parameter("mix.weight").grad, plain.get_parameter("mix.weight").grad, atol=1e-6)


def test_rows_that_no_batch_holds_have_a_gradient_of_exact_zero() -> None:
    model, plan = prepared(tied=False, rows=[5, 17])
    loss_of(model).backward()
    grad = model.get_parameter("embed_tokens.trained_rows").grad
    assert grad is not None
    assert grad[0].eq(0).all()
    assert grad[1].ne(0).any()
    assert plan.decisions["embed_tokens.trained_rows"].conditional


def test_nothing_of_the_size_of_the_table_is_made() -> None:
    """One forward and backward of a table of 200,000 rows makes less than a hundredth of it anew."""
    with torch.device("meta"):
        embedding = nn.Embedding(200_000, 8)
    holder = nn.ModuleDict({"embed": embedding}).to_empty(device="cpu")
    fl.prepare(holder, freeze_config={"unfreeze_modules": [{"param": "*", "rows": "-5:"}], "freeze_modules": ["*"]})
    made: list[int] = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                made.append(result.numel())
            return result

    with Sizes():
        holder["embed"](torch.tensor([[1, 199_999]])).sum().backward()
    assert made
    assert max(made) < 200_000 * 8 / 100


@pytest.mark.parametrize(
    "ids", [TOKENS.to(torch.int32), TOKENS.t(), torch.tensor(17), torch.empty(0, dtype=torch.long)]
)
def test_ids_of_every_form(ids: Tensor) -> None:
    model, _ = prepared()
    scatter(model)
    embed = model.get_submodule("embed_tokens")
    assert torch.equal(embed(ids), with_table_replaced(model).get_submodule("embed_tokens")(ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    model = table().to(dtype)
    fl.prepare(model, freeze_config=rows_config(ROWS, head=True))
    with torch.autocast("cpu", torch.bfloat16):
        before = table().to(dtype)(TOKENS)
        assert torch.equal(model(TOKENS), before)
        loss_of(model).backward()
    grad = model.get_parameter("embed_tokens.trained_rows").grad
    assert grad is not None
    assert grad.dtype == torch.float32
    assert grad.ne(0).any()


class Scaled(nn.Embedding):
    """As Gemma's: a subclass that multiplies what it has looked up."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3.0


class Bypass(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.embedding(input, self.weight)


class DoubledHead(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2.0


def test_what_a_subclass_does_around_its_layer_stays_around_the_rows() -> None:
    model = nn.ModuleDict({"embed": Scaled(VOCABULARY, WIDTH), "head": DoubledHead(WIDTH, VOCABULARY)})
    rows = {"unfreeze_modules": [{"param": "*.weight", "rows": ROWS}], "freeze_modules": ["*"]}
    fl.prepare(model, freeze_config=rows)
    scatter(model)
    plain = with_table_replaced(model)
    assert torch.equal(model["embed"](TOKENS), plain["embed"](TOKENS))
    x = torch.randn(2, WIDTH)
    assert torch.allclose(model["head"](x), plain["head"](x), atol=1e-6)
    assert isinstance(model["embed"], Scaled)
    assert type(plain["embed"]) is Scaled
    assert isinstance(pickle.loads(pickle.dumps(model))["embed"], Scaled)


def test_gemma_s_scaled_table() -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    model = Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    ).eval()
    before = model(input_ids=TOKENS).logits
    fl.prepare(
        model,
        peft=fl.LoRA(rank=2),
        freeze_config=rows_config(ROWS, head=False, frozen=[])
        | {"unfreeze_modules": [{"param": "*.embed_tokens.weight", "rows": ROWS}]},
    )
    assert torch.equal(model(input_ids=TOKENS).logits, before)
    scatter(model)
    ours = model(input_ids=TOKENS).logits
    assert torch.allclose(with_table_replaced(model)(input_ids=TOKENS).logits, ours, atol=1e-5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "max_norm": ({"max_norm": 1.0}, "max_norm changes the table while it is read"),
    "scale_grad_by_freq": ({"scale_grad_by_freq": True}, "scale_grad_by_freq counts tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_an_embedding_that_rows_cannot_keep_are_refused(name: str) -> None:
    options, message = REFUSED[name]
    model = table(tied=False, **options)
    with pytest.raises(AdapterError, match=message):
        fl.prepare(model, freeze_config=rows_config(ROWS))
    assert type(model.embed_tokens) is nn.Embedding


def test_a_padding_row_gets_no_gradient_from_being_looked_up() -> None:
    model, _ = prepared(tied=False, padding_idx=17)
    loss_of(model).backward()
    grad = model.get_parameter("embed_tokens.trained_rows").grad
    whole = table(tied=False, padding_idx=17)
    loss_of(whole).backward()
    assert grad is not None
    assert whole.embed_tokens.weight.grad is not None
    assert grad[1].eq(0).all()
    assert grad[0].ne(0).any()
    assert torch.allclose(grad, whole.embed_tokens.weight.grad[ROWS])


def test_a_sparse_table_s_rows_have_dense_gradients() -> None:
    model, _ = prepared(tied=False, sparse=True)
    loss_of(model).backward()
    grad = model.get_parameter("embed_tokens.trained_rows").grad
    assert grad is not None
    assert not grad.is_sparse
    assert grad.ne(0).any()


def one(module: nn.Module) -> nn.Module:
    return nn.ModuleDict({"part": module, "rest": nn.Linear(2, 2)})


IMPOSSIBLE: dict[str, tuple[nn.Module, str]] = {
    "norm": (nn.LayerNorm(4), "it belongs to a LayerNorm"),
    "convolution": (nn.Conv1d(4, 4, 1), "it belongs to a Conv1d"),
    "experts": (nn.ParameterDict({"weight": torch.zeros(4, 2, 2)}), "it belongs to a ParameterDict"),
    "own forward": (Bypass(4, 2), "Bypass.forward does not call Embedding's"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_rows_of_other_parameters_are_an_error_that_says_what_is_possible(name: str) -> None:
    module, message = IMPOSSIBLE[name]
    with pytest.raises(
        AdapterError, match=rf"{message}(.|\n)*possible: the weight of an nn.Embedding or of an nn.Linear"
    ):
        fl.prepare(one(module), freeze_config={"freeze_modules": [{"param": "part.weight", "rows": 1}]})


def test_a_bias_has_no_rows_of_its_own() -> None:
    with pytest.raises(AdapterError, match="it is no table of the Linear"):
        fl.prepare(table(bias=True), freeze_config={"freeze_modules": [{"param": "lm_head.bias", "rows": 1}]})


def test_a_weight_that_another_module_reads_is_refused() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)})
    with pytest.raises(AdapterError, match="MultiheadAttention reads it directly"):
        fl.prepare(model, freeze_config={"freeze_modules": [{"param": "*.out_proj.weight", "rows": 1}]})


def test_a_quantized_table_is_refused() -> None:
    model = table(tied=False)
    model.embed_tokens.weight = nn.Parameter(torch.zeros(VOCABULARY, WIDTH, dtype=torch.int8), requires_grad=False)
    with pytest.raises(AdapterError, match="its dtype is int8"):
        fl.prepare(model, freeze_config=rows_config(ROWS))


def test_a_forward_replaced_on_the_instance_is_refused() -> None:
    model = table(tied=False)
    model.embed_tokens.forward = model.embed_tokens.forward  # type: ignore[method-assign]
    with pytest.raises(AdapterError, match="replaced on the instance"):
        fl.prepare(model, freeze_config=rows_config(ROWS))


def test_a_module_with_an_adapter_is_refused() -> None:
    model = table(tied=False)
    fl.LoRA(rank=2, target_modules=["lm_head"])(model)
    from frostline.adapters import refuse_unsupported
    from frostline.config.origin import Origin
    from frostline.tree import ModuleTree

    tree = ModuleTree.from_model(model)
    with pytest.raises(AdapterError, match="its module carries an adapter"):
        refuse_unsupported(tree, [(tree.param_index["lm_head.weight"], Origin(), "it")])


def test_a_parameter_of_that_name_is_not_taken_for_ours() -> None:
    model = table(tied=False)
    model.embed_tokens.register_parameter("trained_rows", nn.Parameter(torch.zeros(1)))
    plan = fl.resolve(model)
    assert plan.decisions["embed_tokens.trained_rows"].kind == "base"
    with pytest.raises(AdapterError, match="has a trained_rows of its own"):
        fl.prepare(model, freeze_config={"freeze_modules": [{"param": "embed_tokens.weight", "rows": 1}]})


def test_it_pickles_copies_and_stays_what_it_was() -> None:
    model, plan = prepared()
    scatter(model)
    expected = model(TOKENS)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(TOKENS), expected)
        assert twin.lm_head.trained_rows is twin.embed_tokens.trained_rows
        assert isinstance(twin.embed_tokens, nn.Embedding)
        assert isinstance(twin.lm_head, nn.Linear)
        assert fl.plan_of(twin).digest == plan.digest
        fl.plan_of(twin).verify(twin)
        assert rows_of(twin)["embed_tokens.trained_rows"].rows == tuple(ROWS)


def test_a_base_checkpoint_loads_after_the_rows_are_laid() -> None:
    model, _ = prepared()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        other = type(table())()
    missing = model.load_state_dict(other.state_dict(), strict=False)
    assert missing.missing_keys == ["embed_tokens.trained_rows", "lm_head.trained_rows"]
    assert missing.unexpected_keys == []
    assert torch.equal(model(TOKENS), other(TOKENS))


def test_its_own_state_dict_loads_and_holds_no_indices() -> None:
    model, _ = prepared()
    scatter(model)
    twin, _ = prepared()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(TOKENS), model(TOKENS))
    assert set(model.state_dict()) - set(table().state_dict()) == {"embed_tokens.trained_rows", "lm_head.trained_rows"}


def test_the_meta_device_plans_lays_and_takes_values_later() -> None:
    with torch.device("meta"):
        model = table()
    plan = fl.resolve(model, freeze_config=rows_config(ROWS, head=True))
    assert plan.decisions["embed_tokens.trained_rows"].shape == (3, WIDTH)
    fl.prepare(model, freeze_config=rows_config(ROWS, head=True))
    assert model(TOKENS.to("meta")).shape == (2, 4, VOCABULARY)
    model.to_empty(device="cpu")
    model.load_state_dict(table().state_dict(), strict=False)
    assert torch.equal(model(TOKENS), table()(TOKENS))


def test_switched_off_it_computes_as_its_base() -> None:
    model, _ = prepared()
    scatter(model)
    with disabled(model):
        assert torch.equal(model(TOKENS), table()(TOKENS))
    assert not torch.equal(model(TOKENS), table()(TOKENS))


def test_merge_writes_the_rows_into_the_one_table() -> None:
    model, _ = prepared()
    scatter(model)
    expected, values = model(TOKENS), model.get_parameter("embed_tokens.trained_rows").detach().clone()
    merged = fl.merge(model)
    assert torch.allclose(merged(TOKENS), expected, atol=1e-6)
    assert list(merged.state_dict()) == list(table().state_dict())
    assert type(merged.get_submodule("embed_tokens")) is nn.Embedding
    assert merged.get_parameter("embed_tokens.weight") is merged.get_parameter("lm_head.weight")
    weight, base = merged.get_parameter("embed_tokens.weight"), table().embed_tokens.weight
    assert torch.equal(weight[ROWS], values)
    other = [row for row in range(VOCABULARY) if row not in ROWS]
    assert torch.equal(weight[other], base[other])
    with pytest.raises(fl.PlanMismatchError, match="has no plan"):
        fl.plan_of(merged)
    with pytest.raises(AdapterError, match="no adapter and no trained rows"):
        fl.merge(merged)


def test_merge_kept_and_undone_restores_the_base_bit_for_bit() -> None:
    model, _ = prepared()
    scatter(model)
    expected = model(TOKENS)
    merge(model, keep=True)
    assert torch.allclose(model(TOKENS), expected, atol=1e-6)
    assert torch.equal(unmerged_weights(model)["embed_tokens.weight"], table().embed_tokens.weight)
    unmerge(model)
    assert torch.equal(model.get_parameter("embed_tokens.weight"), table().embed_tokens.weight)
    assert torch.equal(model(TOKENS), expected)


def test_merge_refuses_values_that_are_not_finite_and_changes_nothing() -> None:
    model, _ = fl.prepare(table(tied=False), freeze_config=rows_config(ROWS, frozen=[]), peft=fl.LoRA(rank=2))
    scatter(model)
    model.get_parameter("embed_tokens.trained_rows").data[0, 0] = float("nan")
    before = {name: value.clone() for name, value in canonical_named_parameters(model)}
    with pytest.raises(AdapterError, match=r"not finite in embed_tokens.trained_rows"):
        fl.merge(model)
    assert all(value.equal(before[name]) or "rows" in name for name, value in canonical_named_parameters(model))


def test_taken_away_the_model_is_as_it_came() -> None:
    model, _ = prepared()
    scatter(model)
    remove_rows(model)
    assert torch.equal(model(TOKENS), table()(TOKENS))
    assert type(model.get_submodule("lm_head")) is nn.Linear
    assert not list(model.get_submodule("lm_head").buffers())


def test_one_module_under_several_paths() -> None:
    model = table(tied=False)
    model.add_module("again", model.embed_tokens)
    _, plan = fl.prepare(
        model,
        freeze_config={
            "freeze_modules": ["*"],
            "unfreeze_modules": [{"param": f"{name}.weight", "rows": ROWS} for name in ("embed_tokens", "again")],
        },
    )
    assert plan.decisions["again.trained_rows"].path == "embed_tokens.trained_rows"
    assert plan.decisions["embed_tokens.trained_rows"].aliases == ("again.trained_rows",)
    plan.verify(model)
    scatter(model)
    assert torch.equal(model.embed_tokens(TOKENS), with_table_replaced(model).get_submodule("again")(TOKENS))


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="needs torch.compile")
def test_it_traces_in_one_graph() -> None:
    model, _ = prepared()
    scatter(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(TOKENS), model(TOKENS), atol=1e-6)
