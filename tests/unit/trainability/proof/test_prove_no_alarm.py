"""Healthy training that looks odd: the prover raises nothing, and says nothing that is no news."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from frostline import LoRA, prepare
from frostline.config.origin import Origin
from frostline.trainability import Prover, set_training_mode
from frostline.training.gradient_checkpointing import enable_gradient_checkpointing

from ..conftest import encoder, optimizer_of

Feed = Callable[[nn.Module], Tensor]


def rows(model: nn.Module) -> Tensor:
    return model(torch.randn(8, 4)).float().square().sum()


def prove(
    model: nn.Module,
    plan: Any,
    *,
    feed: Feed = rows,
    rates: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1),
    optimizer: torch.optim.Optimizer | None = None,
    micro_batches: int = 1,
) -> Prover:
    """A whole run: training, an evaluation, a save, the end."""
    set_training_mode(model, plan)
    own = {module: module.__dict__.get("forward") for module in model.modules()}
    prover = Prover(model, plan)
    optimizer = optimizer or optimizer_of(model)
    for number, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for _ in range(micro_batches):
            feed(model).backward()
        prover.before_step(number, lr, optimizer)
        optimizer.step()
        prover.after_step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    prover.evaluation_begin()
    with torch.no_grad():
        feed(model)
    prover.evaluation_end()
    set_training_mode(model, plan)
    prover.before_save()
    prover.final_check()
    assert not prover.watching
    assert all(module.__dict__.get("forward") is forward for module, forward in own.items()), "nothing stays behind"
    return prover


@pytest.mark.parametrize("peft", [None, LoRA(rank=2, target_modules=["linear"], dropout=0.3)])
def test_a_warm_up_that_starts_at_exactly_zero(peft: Any) -> None:
    model, plan = prepare(encoder(), peft=peft)
    assert prove(model, plan, rates=(0.0, 0.0, 0.1, 0.1, 0.1)).remarks == []


def test_lora_a_behind_lora_b_that_is_zero() -> None:
    model, plan = prepare(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    assert prove(model, plan).remarks == []


def test_batch_norm_of_trained_modules_moves_and_of_frozen_ones_does_not() -> None:
    model, plan = prepare(encoder(), freeze_config={"freeze_modules": [{"layers": ":2"}]})
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert prove(model, plan).remarks == []
    moved = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    assert moved == {f"layers.2.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


def test_a_buffer_of_a_frozen_module_that_shows_a_trained_parameter_moves_with_it() -> None:
    for shown in (lambda weight: weight, lambda weight: weight.detach(), lambda weight: weight.detach()[0]):
        model = encoder()
        model.layers[0].register_buffer("seen", shown(model.head.weight))
        model, plan = prepare(model, freeze_config={"freeze_modules": [{"layers": 0}]})
        model.layers[0].register_buffer("own", torch.ones(2))
        assert prove(model, plan).remarks == []


def test_a_trained_parameter_without_elements_is_no_news() -> None:
    model = encoder()
    model.empty = nn.Parameter(torch.zeros(0, 4))
    forward = model.forward
    model.forward = lambda x: forward(x) + model.empty.sum()  # type: ignore[method-assign]
    model, plan = prepare(model, freeze_config={"freeze_modules": [{"layers": 0}]})
    assert prove(model, plan).remarks == []


def test_frozen_mode_train() -> None:
    model, plan = prepare(encoder(), freeze_config={"freeze_modules": [{"layers": ":2"}], "frozen_mode": "train"})
    assert prove(model, plan).remarks == []


def llama(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, max_position_embeddings=8, **more,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tokens(length: int) -> Feed:
    def feed(model: nn.Module) -> Tensor:
        ids = torch.randint(0, 32, (2, length))
        return model(input_ids=ids, labels=ids).loss

    return feed


def test_rotary_caches_that_dynamic_scaling_recomputes_for_longer_texts() -> None:
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    model, plan = prepare(model, freeze_config={"freeze_modules": ["embed_tokens", {"layers": 0}]})
    before = model.model.rotary_emb.inv_freq.clone()
    lengths = iter((4, 30, 12, 60, 20))
    assert prove(model, plan, feed=lambda model: tokens(next(lengths))(model)).remarks == []
    assert not torch.equal(before, model.model.rotary_emb.inv_freq)


def test_modules_without_parameters_and_a_bias_without_effect() -> None:
    class Attends(nn.Module):
        """The bias of the keys moves every score of a row alike."""

        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.act = nn.Dropout(0.1), nn.Sequential(nn.GELU(), nn.Dropout(0.1))
            self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.query(x), self.key(x), self.act(self.value(self.dropout(x)))
            return torch.softmax(query @ key.T, -1) @ value

    model, plan = prepare(Attends())
    prover = prove(model.double(), plan, feed=lambda model: model(torch.randn(8, 4).double()).square().sum())
    assert all("key.bias" in remark for remark in prover.remarks)


def test_sparse_embeddings() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids))

    model, plan = prepare(Looks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.tensor([1, 3, 3])
    assert prove(model, plan, feed=lambda model: model(ids).square().sum(), optimizer=optimizer).remarks == []


def test_parameters_and_modules_shared_by_several_paths() -> None:
    model = llama(tie_word_embeddings=True)
    model.model.layers[1].mlp = model.model.layers[0].mlp
    model, plan = prepare(model)
    assert prove(model, plan, feed=tokens(6)).remarks == []
    shared = nn.Linear(4, 4)
    model, plan = prepare(nn.Sequential(shared, nn.Tanh(), shared), peft=LoRA(rank=2))
    assert prove(model, plan).remarks == []


def test_gradient_accumulation() -> None:
    model, plan = prepare(encoder(), freeze_config={"freeze_modules": ["embed"]})
    assert prove(model, plan, micro_batches=4).remarks == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    """Row 78: with a frozen embedding every adapter still gets its gradient, in both modes."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder()

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner.embed(x)
            x = x.requires_grad_() if reentrant else x
            for layer in self.inner.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant) if self.training else layer(x)
            return self.inner.head(x)

    model, plan = prepare(Checkpointed(), peft=LoRA(rank=2, target_modules=["linear"]))
    assert prove(model, plan).remarks == []


def test_gradient_checkpointing_of_transformers() -> None:
    model, plan = prepare(llama(), peft=LoRA(rank=2, target_modules=["*_proj"]))
    enable_gradient_checkpointing(model, Origin())
    assert prove(model, plan, feed=tokens(6)).remarks == []


@pytest.mark.parametrize("peft", [None, LoRA(rank=2, dtype="bfloat16", target_modules=["*_proj"])])
def test_bfloat16(peft: Any) -> None:
    freeze = {"freeze_modules": ["embed_tokens"]}
    model, plan = prepare(llama().to(torch.bfloat16), peft=peft, freeze_config=freeze)
    assert prove(model, plan, feed=tokens(6)).remarks == []


def test_bfloat16_autocast_over_float32() -> None:
    def feed(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return rows(model)

    model, plan = prepare(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    assert prove(model, plan, feed=feed).remarks == []


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
@pytest.mark.parametrize("peft", [None, LoRA(rank=2, target_modules=["linear"])])
def test_compiled_models_are_compiled_once_for_training_and_once_for_evaluation(peft: Any) -> None:
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(inputs)
        return graph.forward

    torch._dynamo.reset()
    freeze = {"freeze_modules": [{"layers": ":2"}]} if peft is None else None
    model, plan = prepare(encoder(), peft=peft, freeze_config=freeze)
    compiled = torch.compile(model, backend=counting)
    plan = plan.bind(compiled)
    assert prove(compiled, plan).remarks == []
    assert len(graphs) == 2
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_a_model_that_was_compiled_and_run_before_the_proof_is_a_remark() -> None:
    torch._dynamo.reset()
    model, plan = prepare(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    compiled = torch.compile(model, backend="eager")
    plan = plan.bind(compiled)
    set_training_mode(compiled, plan)
    rows(compiled)
    prover = prove(compiled, plan)
    assert all("could not be seen" in remark for remark in prover.remarks)
    torch._dynamo.reset()


def test_a_copy_made_while_the_proof_watches_runs_by_itself() -> None:
    model, plan = prepare(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    Prover(model, plan)
    other = copy.deepcopy(model).eval()
    x = torch.randn(2, 4)
    expected = model.eval()(x)
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    assert torch.equal(other(x), expected)
