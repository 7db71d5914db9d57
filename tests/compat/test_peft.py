"""Against the real Hugging Face peft: files both ways, and the same numbers from the same factors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frostline.adapters import LoRA, adapters_of
from frostline.checkpoint import BaseIdentity
from frostline.errors import AdapterError, CheckpointError
from frostline.preparation import prepare
from frostline.sharing import load_adapter, save_adapter

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

# peft 0.21 asks transformers 5.24 for a property by its old name. Goes when peft uses `is_activation_checkpointing`.
OLD_NAME = "`is_gradient_checkpointing` is deprecated"
pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD_NAME}:FutureWarning")

BERT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "num_labels": 3,
}


def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT)).eval()


def distilbert() -> Any:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=16, num_labels=3
    )
    return transformers.DistilBertForSequenceClassification(config).eval()


def llama(tied: bool = True) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config).eval()


TOKENS = torch.arange(24).reshape(3, 8) % 40


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def scatter(model: nn.Module) -> None:
    """What trains, and every factor, away from where it started."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.requires_grad or ".lora_" in name:
                param += 0.2 * torch.randn(param.shape, generator=generator)


def in_peft(build: Callable[[], Any], folder: Path) -> Any:
    """The adapter as peft loads it; any warning (missing or unexpected keys) is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", OLD_NAME, FutureWarning)
        return peft.PeftModel.from_pretrained(build(), folder)


HEAD = ["classifier.weight", "classifier.bias"]
CASES: dict[str, dict[str, Any]] = {
    "plain": {"build": llama, "task": "CAUSAL_LM"},
    "untied": {"build": lambda: llama(tied=False), "task": "CAUSAL_LM"},
    "adapted output head": {
        "build": lambda: llama(tied=False),
        "task": "CAUSAL_LM",
        "method": {"target_modules": ["lm_head", "q_proj"]},
    },
    "rslora, alpha, dropout": {
        "build": llama,
        "task": "CAUSAL_LM",
        "method": {"use_rslora": True, "alpha": 3.5, "dropout": 0.1, "rank": 3},
    },
    "tied embeddings trained": {
        "build": llama,
        "task": "CAUSAL_LM",
        "freeze": {"unfreeze_modules": ["embed_tokens", "lm_head"]},
    },
    "trained head": {"build": bert, "task": "SEQ_CLS", "new": HEAD, "method": {"target_modules": ["query", "value"]}},
    "thawed norms and biases": {
        "build": bert,
        "task": "SEQ_CLS",
        "new": HEAD,
        "method": {"target_modules": ["query"]},
        "freeze": {"unfreeze_modules": [{"type": "LayerNorm"}, {"param": "*.bias"}]},
    },
    "classifier beside a frozen pre_classifier": {
        "build": distilbert,
        "task": "SEQ_CLS",
        "new": HEAD,
        "method": {"target_modules": ["q_lin", "v_lin"]},
    },
    "both, one of them adapted": {
        "build": distilbert,
        "task": "SEQ_CLS",
        "new": HEAD,
        "method": {"target_modules": ["pre_classifier", "lin1"]},
    },
    "one block in full": {
        "build": llama,
        "task": "CAUSAL_LM",
        "freeze": {"unfreeze_modules": ["layers.1.mlp"]},
        "method": {"target_modules": [{"glob": "*_proj"}]},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_peft_computes_what_we_compute(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    build = case["build"]
    model, _ = prepare(
        build(),
        peft=LoRA(**{"rank": 4, **case.get("method", {})}),
        freeze_config=case.get("freeze"),
        new=case.get("new", ()),
    )
    scatter(model)
    save_adapter(model, tmp_path, task_type=case["task"])
    ours = logits(model)
    assert (ours - logits(build())).abs().max() > 0.01
    loaded = in_peft(build, tmp_path)
    assert (logits(loaded) - ours).abs().max() <= 1e-5
    assert (logits(loaded.merge_and_unload()) - ours).abs().max() <= 1e-5
    again, _ = load_adapter(build(), tmp_path)
    assert torch.equal(logits(again), ours)


@pytest.mark.parametrize("build", [bert, distilbert, llama], ids=["bert", "distilbert", "llama"])
@pytest.mark.parametrize(
    "options", [{}, {"use_rslora": True, "lora_alpha": 5}, {"target_modules": "all-linear"}], ids=str
)
def test_we_compute_what_peft_computes(build: Callable[[], Any], options: dict[str, Any], tmp_path: Path) -> None:
    task = "CAUSAL_LM" if build is llama else "SEQ_CLS"
    targets = {bert: ["query", "dense"], distilbert: ["q_lin", "lin1"], llama: ["q_proj", "down_proj"]}[build]
    if build is distilbert and options.get("target_modules"):
        pytest.skip("peft itself cannot: it adapts pre_classifier and then wants to save it in full")
    if build is bert and not options.get("target_modules"):
        targets = ["query", "value"]
    config = peft.LoraConfig(**{"r": 4, "target_modules": targets, "task_type": task, **options})
    theirs = peft.get_peft_model(build(), config)
    scatter(theirs)
    theirs.save_pretrained(tmp_path)
    model, plan = load_adapter(build(), tmp_path)
    assert (logits(model) - logits(theirs)).abs().max() <= 1e-5
    if task == "SEQ_CLS":
        assert plan.decisions["classifier.weight"].trains
    # And back: what we write again is the same file to peft.
    save_adapter(model, tmp_path / "again", task_type=task)
    assert (logits(in_peft(build, tmp_path / "again")) - logits(theirs)).abs().max() <= 1e-5


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
def test_same_factors_same_output_and_gradients(precision: str, checkpointing: bool) -> None:
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    ours, _ = prepare(llama().to(dtype), peft=LoRA(rank=4))
    theirs = peft.get_peft_model(llama().to(dtype), peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    scatter(ours)
    values = ours.state_dict()
    params = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): param
        for name, param in theirs.named_parameters()
    }
    assert {name for name, param in params.items() if param.requires_grad} == {
        name for name, param in ours.named_parameters() if param.requires_grad
    }
    for name, param in params.items():
        param.data.copy_(values[name])
    results = []
    for model in (ours, theirs):
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            out = model(input_ids=TOKENS).logits
            out.float().logsumexp(-1).sum().backward()
        named = params if model is theirs else dict(model.named_parameters())
        results.append((out.detach(), {name: p.grad for name, p in named.items() if p.grad is not None}))
    (out, grads), (their_out, their_grads) = results
    assert out.dtype is their_out.dtype
    assert grads.keys() == their_grads.keys()
    tolerance = 1e-5 if precision == "float32" else 0.1  # the order of roundings differs
    assert (out - their_out).abs().max() <= tolerance * their_out.abs().max()
    for name, grad in grads.items():
        assert grad is not None
        other = their_grads[name]
        assert grad.dtype is other.dtype
        assert (grad - other).norm() <= tolerance * other.norm() + 1e-6, name


def test_all_linear_means_the_same_modules_as_in_peft() -> None:
    ours, _ = prepare(llama(tied=False), peft=LoRA())
    theirs = peft.get_peft_model(llama(tied=False), peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    adapted = {
        name.removeprefix("base_model.model.") for name, module in theirs.named_modules() if hasattr(module, "lora_A")
    }
    assert set(adapters_of(ours)["default"].targets) == adapted


def test_initial_values_are_drawn_from_peft_s_distribution() -> None:
    wide = nn.ModuleDict({"proj": nn.Linear(512, 4)})
    theirs = peft.LoraModel(
        nn.ModuleDict({"proj": nn.Linear(512, 4)}), peft.LoraConfig(r=64, target_modules=["proj"]), "default"
    )
    LoRA(rank=64)(wide)
    ours, other = (model.get_parameter("proj.lora_A.default.weight") for model in (wide, theirs.model))
    assert ours.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.01)
    assert ours.std().item() == pytest.approx(other.std().item(), rel=0.02)


def test_case_63_a_target_whose_name_ends_another_s_is_chosen_alone(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            for name in ("bar", "foo_bar"):
                self.add_module(name, nn.ModuleList([nn.ModuleDict({"query": nn.Linear(4, 4)})]))

        def forward(self, x: Tensor) -> Tensor:
            """x: [batch, 4]"""
            return self.bar[0]["query"](x) + self.foo_bar[0]["query"](x)  # type: ignore[index, operator]

    model, _ = prepare(Branches(), peft=LoRA(rank=2, target_modules=[{"path": "bar.0.query"}]))
    scatter(model)
    save_adapter(model, tmp_path)
    theirs = in_peft(Branches, tmp_path)
    adapted = [name for name, module in theirs.named_modules() if hasattr(module, "lora_A")]
    assert adapted == ["base_model.model.bar.0.query"]
    x = torch.randn(2, 4)
    torch.testing.assert_close(theirs(x), model(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
    ],
)
def test_what_we_cannot_compute_yet_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options))
    theirs.save_pretrained(tmp_path)
    model = llama()
    before = logits(model)
    with pytest.raises(AdapterError, match=rf"not supported yet(.|\n)*{message}"):
        load_adapter(model, tmp_path)
    assert torch.equal(logits(model), before)
    assert not adapters_of(model)


def test_cases_93_and_94_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    theirs = peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query"]))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"none of the 2 modules that the adapter is for is in this model"):
        load_adapter(llama(), tmp_path)


def test_the_base_is_named_for_peft(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    prepare(model, peft=LoRA(rank=4))
    scatter(model)
    save_adapter(model, tmp_path / "adapter", task_type="CAUSAL_LM")
    alone = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert (logits(alone) - logits(model)).abs().max() <= 1e-5
    with pytest.raises(CheckpointError, match="another base"):
        load_adapter(llama(), tmp_path / "adapter", base=BaseIdentity(fingerprint="sampled:0"))


@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]], ids=str)
def test_what_peft_trained_apart_is_not_written_into_a_tied_tensor(saved: list[str], tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=saved)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft says itself that the tie is broken
        theirs = peft.get_peft_model(llama(), config)
        scatter(theirs)
        theirs.save_pretrained(tmp_path)
    model = llama()
    before = logits(model)
    with pytest.raises((AdapterError, CheckpointError), match=r"tied(.|\n)*possible:(.|\n)*do:"):
        load_adapter(model, tmp_path)
    assert torch.equal(logits(model), before)
    assert not adapters_of(model)


def test_the_copy_of_an_adapted_output_head_that_peft_saves(tmp_path: Path) -> None:
    def build() -> Any:
        return llama(tied=False)

    theirs = peft.get_peft_model(build(), peft.LoraConfig(r=4, target_modules=["lm_head", "q_proj"]))
    scatter(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft says that it saves the head
        theirs.save_pretrained(tmp_path)
    assert any("lm_head.base_layer.weight" in key for key in load_file(tmp_path / "adapter_model.safetensors"))
    model, plan = load_adapter(build(), tmp_path)
    assert (logits(model) - logits(theirs)).abs().max() <= 1e-5
    assert "lm_head.weight" not in plan.trainable
    load_adapter(model, tmp_path)  # prepared
    load_adapter(build().bfloat16(), tmp_path)
    other = build()
    with torch.no_grad():
        other.lm_head.weight += 1
    with pytest.raises(CheckpointError, match=r"another base: .*lm_head\.weight(.|\n)*possible:(.|\n)*do:"):
        load_adapter(other, tmp_path)
    assert not adapters_of(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_in_a_folder_of_transformers(dtype: torch.dtype, tmp_path: Path) -> None:
    """Loaded as another class, under names with a prefix, with parameters that no file holds."""

    def build() -> Any:
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "base", num_labels=3, dtype=dtype
        )

    transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False).save_pretrained(tmp_path / "base")
    model, _ = prepare(build(), peft=LoRA(rank=4, target_modules=["query"]), new=HEAD)
    scatter(model)
    save_adapter(model, tmp_path / "a")
    load_adapter(build(), tmp_path / "a")
    other = build()
    with torch.no_grad():
        other.bert.encoder.layer[1].output.dense.weight.mul_(1.1)
    with pytest.raises(CheckpointError, match=r"bert\.encoder\.layer\.1\.output\.dense\.weight in memory is not"):
        load_adapter(other, tmp_path / "a")
