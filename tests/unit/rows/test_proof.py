"""Rows that do not train never move, whatever the optimizer; what would go around them is found out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frostline as fl
from frostline.config.models import OptimizerConfig, TrainingConfig
from frostline.errors import TrainingError
from frostline.trainability import Prover
from frostline.training.optimizer import OPTIMIZERS, build_optimizer
from frostline.training.precision import convert_trained

from .conftest import TOKENS, VOCABULARY, Table, loss_of, rows_config, table, trained

ROWS = "embed_tokens.trained_rows"
EMBED = "embed_tokens.weight"


def prove(model: nn.Module, plan: fl.TrainabilityPlan, *, steps: int = 5, tokens: Tensor = TOKENS) -> Prover:
    """Some steps of AdamW with decay, proven."""
    optimizer = torch.optim.AdamW(trained(model), lr=0.05, weight_decay=0.5)
    prover = Prover(model, plan)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        prover.before_step(step, 0.05, optimizer)
        optimizer.step()
        prover.after_step()
    return prover


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_row_36_frozen_rows_are_bit_identical_after_steps_with_decay(name: str) -> None:
    """Row 36: freeze rows 0-9 of an embedding, several steps with weight decay and momentum, compare those rows."""
    config = {"freeze_modules": [{"param": EMBED, "rows": ":10"}]}
    model, plan = fl.prepare(table(tied=False), freeze_config=config)
    settings = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    optimizer = build_optimizer(model, plan, OptimizerConfig(name=name, weight_decay=0.5, **settings), lr=0.05)
    tokens = torch.arange(VOCABULARY).reshape(2, 10)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        optimizer.step()
    base = table(tied=False).embed_tokens.weight
    assert torch.equal(model.get_parameter(EMBED), base)
    merged = fl.merge(model).get_parameter(EMBED)
    assert torch.equal(merged[:10], base[:10])
    assert (merged[10:] - base[10:]).abs().amin(dim=-1).gt(0).all()


@pytest.mark.parametrize("tied", [True, False])
def test_row_36_rows_that_are_not_thawed_get_no_decay(tied: bool) -> None:
    """Row 36, the other way round: only the thawed rows change, in look-up and head."""
    model, plan = fl.prepare(table(tied=tied), freeze_config=rows_config([3, 17], head=tied))
    prover = prove(model, plan)
    assert prover.final_check().startswith("frozen part: ")
    merged, base = fl.merge(model), table(tied=tied)
    other = [row for row in range(VOCABULARY) if row not in (3, 17)]
    for name, weight in base.named_parameters():
        after = merged.get_parameter(name)
        if name == EMBED:
            assert torch.equal(after[other], weight[other])
            assert not torch.equal(after, weight)
        else:
            assert torch.equal(after, weight)


def test_row_22_with_adapters_only_adapters_and_rows_change() -> None:
    """Row 22: anything else that trains must be requested; here the rows are."""
    model, plan = fl.prepare(
        table(), freeze_config={"unfreeze_modules": [{"param": EMBED, "rows": "17:"}]}, peft=fl.LoRA(rank=2)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prove(model, plan).final_check()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {ROWS, "lm_head.trained_rows", "mix.lora_A.default.weight", "mix.lora_B.default.weight"}


def test_row_78_a_frozen_table_with_trained_rows_gives_checkpointed_adapters_their_gradient() -> None:
    """Row 78: the look-up needs a gradient for its rows, so what comes after it is part of backward."""
    model, _ = fl.prepare(
        table(), freeze_config={"unfreeze_modules": [{"param": EMBED, "rows": "17:"}]}, peft=fl.LoRA(rank=2)
    )
    for reentrant in (True, False):
        model.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(
            model.get_submodule("mix"), model.get_submodule("embed_tokens")(TOKENS), use_reentrant=reentrant
        )
        model.get_submodule("lm_head")(hidden).square().sum().backward()
        for name in ("mix.lora_B.default.weight", ROWS):
            grad = model.get_parameter(name).grad
            assert grad is not None
            assert grad.ne(0).any()


def test_a_frozen_row_that_is_written_to_is_found() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    prover = prove(model, plan)
    with torch.no_grad():
        model.get_parameter(EMBED)[0, 0] += 1
    with pytest.raises(fl.PlanMismatchError, match=f"frozen tensors changed during the run: {EMBED}"):
        prover.final_check()


def test_rows_of_which_a_batch_holds_some_are_no_alarm() -> None:
    model, plan = fl.prepare(table(tied=False), freeze_config=rows_config([5, 6, 17]))
    prover = prove(model, plan)
    prover.final_check()
    base = table(tied=False).embed_tokens.weight
    rows = model.get_parameter(ROWS)
    assert not torch.equal(rows[2], base[17])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("param_dtype", ["auto", "float32"])
def test_param_dtype_is_that_of_the_rows(precision: str, param_dtype: str) -> None:
    model, plan = fl.prepare(table().to(torch.bfloat16), freeze_config=rows_config(head=True))
    before = model(TOKENS)
    config: Any = {"precision": precision, "param_dtype": param_dtype}
    convert_trained(model, plan, TrainingConfig(**config))
    assert model.get_parameter(ROWS).dtype == torch.float32
    assert model.get_parameter(EMBED).dtype == torch.bfloat16
    assert torch.equal(model(TOKENS), before)
    convert_trained(model, plan, TrainingConfig(**{**config, "param_dtype": "bfloat16"}))
    assert model.get_parameter(ROWS).dtype == torch.bfloat16
    assert model.get_submodule("lm_head").trained_rows is model.get_parameter(ROWS)
    loss_of(model).backward()


class ReadsTheTable(Table):
    """The head multiplies by the table itself, as `F.linear(x, self.embed_tokens.weight)`."""

    def __init__(self, how: str = "linear") -> None:
        super().__init__(tied=False)
        self.how = how

    def forward(self, tokens: Tensor) -> Tensor:
        embedding = self.embed_tokens
        x = torch.tanh(self.mix(embedding(tokens)))
        weight = embedding.weight
        assert weight.dtype == x.dtype
        assert weight.device == x.device
        assert weight.shape[0] == VOCABULARY
        if self.how == "looks":
            return self.lm_head(x.to(weight) + weight.new_zeros(1) + torch.zeros_like(weight).sum())
        return {
            "linear": lambda: nn.functional.linear(x, weight),
            "transposed": lambda: x @ weight.T,
            "einsum": lambda: torch.einsum("bld,vd->blv", x, weight),
            "detached": lambda: x @ weight.detach().t(),
        }[self.how]()


@pytest.mark.parametrize("how", ["linear", "transposed", "einsum", "detached"])
def test_a_model_that_reads_the_table_itself_is_found_out(how: str) -> None:
    with torch.random.fork_rng(devices=[]):
        model, plan = fl.prepare(ReadsTheTable(how), freeze_config=rows_config())
    with pytest.raises(TrainingError, match=rf"reads {EMBED} itself, past the rows that train(.|\n)*{EMBED} in "):
        prove(model, plan)
    assert not model._forward_hooks
    assert not model.get_submodule("embed_tokens")._forward_pre_hooks


def test_a_model_that_only_looks_at_the_table_is_none() -> None:
    with torch.random.fork_rng(devices=[]):
        model, plan = fl.prepare(ReadsTheTable("looks"), freeze_config=rows_config())
    prove(model, plan)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_forward_that_fails_leaves_no_watch_behind() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    prover = Prover(model, plan)
    with pytest.raises(IndexError):
        model(torch.tensor([[VOCABULARY]]))
    assert torch.overrides._get_current_function_mode_stack() == []
    del prover
    loss_of(model)


def test_bert_s_tied_decoder_goes_through_its_modules() -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = BertForMaskedLM(config).eval()
    before = model(input_ids=TOKENS).logits
    names = ("bert.embeddings.word_embeddings", "cls.predictions.decoder")
    freeze = {
        "freeze_modules": ["*"],
        "unfreeze_modules": [{"param": f"{name}.weight", "rows": [3, 17]} for name in names],
    }
    _, plan = fl.prepare(model, freeze_config=freeze)
    assert plan.trainable == (f"{names[0]}.trained_rows",)
    assert torch.equal(model(input_ids=TOKENS).logits, before)
    run(model, plan)


def run(model: nn.Module, plan: fl.TrainabilityPlan, **inputs: Tensor) -> None:
    """Three proven steps of a transformers model on its own logits."""
    optimizer = torch.optim.AdamW(trained(model), lr=0.05, weight_decay=0.5)
    prover = Prover(model, plan)
    for step in range(3):
        optimizer.zero_grad()
        logits = model(**(inputs or {"input_ids": TOKENS})).logits
        nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()).backward()
        prover.before_step(step, 0.05, optimizer)
        optimizer.step()
        prover.after_step()
    prover.final_check()


@pytest.mark.parametrize("tied", [True, False])
def test_t5_shares_one_table_among_three_modules(tied: bool) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=8,
            d_kv=4,
            d_ff=8,
            num_layers=1,
            num_heads=2,
            tie_word_embeddings=tied,
            decoder_start_token_id=0,
        )
    ).eval()
    with torch.no_grad():  # which kernels run depends on what needs a gradient, and freezing changes that
        before = model(input_ids=TOKENS, decoder_input_ids=TOKENS).logits
    plan = fl.resolve(model)
    names = next(
        (entry.path, *entry.aliases)
        for entry in plan.decisions.values()
        if "shared.weight" in (entry.path, *entry.aliases)
    )
    freeze = {"freeze_modules": ["*"], "unfreeze_modules": [{"param": name, "rows": [3, 17]} for name in names]}
    _, plan = fl.prepare(model, freeze_config=freeze)
    assert plan.trainable == ("shared.trained_rows",)
    assert {"encoder.embed_tokens.trained_rows", "decoder.embed_tokens.trained_rows"} <= set(
        plan.decisions["shared.trained_rows"].aliases
    )
    with torch.no_grad():
        assert torch.equal(model(input_ids=TOKENS, decoder_input_ids=TOKENS).logits, before)
    run(model, plan, input_ids=TOKENS, decoder_input_ids=TOKENS)
    with torch.no_grad():
        ours = model(input_ids=TOKENS, decoder_input_ids=TOKENS).logits
        assert torch.allclose(fl.merge(model)(input_ids=TOKENS, decoder_input_ids=TOKENS).logits, ours, atol=1e-5)


def test_deberta_s_head_reads_the_table_itself_and_is_found_out() -> None:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DebertaV2ForMaskedLM(
            DebertaV2Config(
                vocab_size=VOCABULARY,
                hidden_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=8,
                legacy=False,
            )
        ).eval()
        names = [path for path, _ in model.named_parameters(remove_duplicate=False) if "word_embeddings" in path]
        freeze = {"freeze_modules": ["*"], "unfreeze_modules": [{"param": name, "rows": [3, 17]} for name in names]}
        _, plan = fl.prepare(model, freeze_config=freeze)
        with pytest.raises(TrainingError, match=r"reads .*word_embeddings.weight itself"):
            run(model, plan)
