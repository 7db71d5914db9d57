"""Real architectures x configs: naive code and the plan agree on what trains, and exactly that moves in three steps.

What should train is written here as a plain loop over `named_parameters`, by hand for each config. The models are those
of `tests/compat/architectures.py`: tiny, random, built from transformers' configs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, prepare, resolve
from frostline.trainability import Prover, set_training_mode

from ..compat.architectures import ARCHITECTURES

Naive = Callable[[str, str], bool]
"""Of a parameter's name and its module's class: whether it trains."""


def block(name: str, container: str) -> int:
    """Index of the block of `container` that holds `name`; -1 outside."""
    found = re.match(re.escape(container) + r"\.(\d+)\.", name)
    return int(found[1]) if found else -1


def nothing(name: str, owner: str) -> bool:
    return False


@dataclass(frozen=True)
class Case:
    """A config, and in plain code what trains of the base and which linears get an adapter."""

    model: str
    label: str
    freeze: list[Any] = field(default_factory=list[Any])
    thaw: list[Any] = field(default_factory=list[Any])
    trains: Naive = nothing
    targets: list[Any] | None = None
    adapted: str = r"(?!)"

    @property
    def config(self) -> dict[str, Any]:
        peft = None if self.targets is None else LoRA(rank=2, target_modules=self.targets)
        return {"freeze_config": {"freeze_modules": self.freeze, "unfreeze_modules": self.thaw}, "peft": peft}


ALL = ["*"]
CASES = [
    Case("llama", "freeze", ["embed_tokens", "lm_head"],
         trains=lambda n, o: not n.startswith(("model.embed_tokens.", "lm_head."))),
    Case("llama", "layers", ALL, [{"layers": "-2:"}, "model.norm"],
         lambda n, o: block(n, "model.layers") >= 2 or n == "model.norm.weight"),
    Case("llama", "type", ALL, [{"type": "LlamaRMSNorm"}], lambda n, o: o == "LlamaRMSNorm"),
    Case("llama", "within and except", ALL,
         [{"type": "Linear", "within": {"layers": ":2"}, "except": ["o_proj"]}],
         lambda n, o: 0 <= block(n, "model.layers") < 2 and o == "Linear" and ".o_proj." not in n),
    Case("llama", "attention of layer 1", ALL, ["layers.1.self_attn"],
         lambda n, o: n.startswith("model.layers.1.self_attn.")),
    Case("llama", "lora and thaw", [], ["lm_head"], lambda n, o: n == "lm_head.weight",
         ["q_proj", "v_proj"], r"model\.layers\.\d\.self_attn\.[qv]_proj"),
    Case("qwen_moe", "freeze", [{"glob": "*.mlp.gate"}], trains=lambda n, o: not n.endswith(".mlp.gate.weight")),
    Case("qwen_moe", "experts of two layers", ALL, [{"glob": "*.experts", "within": {"layers": [1, 3]}}],
         lambda n, o: ".experts." in n and block(n, "model.layers") in (1, 3)),
    Case("qwen_moe", "type", [{"type": "Qwen3MoeRMSNorm"}], trains=lambda n, o: o != "Qwen3MoeRMSNorm"),
    Case("qwen_moe", "lora and thaw", [{"layers": 0}], [{"param": "*.mlp.gate.weight"}],
         lambda n, o: n.endswith(".mlp.gate.weight"), ["q_proj", "o_proj"],
         r"model\.layers\.[123]\.self_attn\.[qo]_proj"),
    Case("bert", "freeze", ["bert"], trains=lambda n, o: n.startswith("classifier.")),
    Case("bert", "layers", ["bert.embeddings", {"layers": "::2"}],
         trains=lambda n, o: not n.startswith("bert.embeddings.") and block(n, "bert.encoder.layer") not in (0, 2)),
    Case("bert", "type and biases", ALL, [{"type": "LayerNorm"}, {"param": "*.bias"}, "classifier"],
         lambda n, o: o == "LayerNorm" or n.endswith(".bias") or n.startswith("classifier.")),
    Case("bert", "regex", [{"regex": r"bert\.encoder\.layer\.[02]"}],
         trains=lambda n, o: block(n, "bert.encoder.layer") not in (0, 2)),
    Case("bert", "lora and thaw", [], ["classifier", "bert.pooler"],
         lambda n, o: n.startswith(("classifier.", "bert.pooler.")), ["query", "value"],
         r"bert\.encoder\.layer\.\d\.attention\.self\.(query|value)"),
    Case("distilbert", "freeze", ["distilbert"], trains=lambda n, o: n.startswith(("pre_classifier.", "classifier."))),
    Case("distilbert", "layers", ["embeddings", {"layers": ":3"}],
         trains=lambda n, o: "embeddings" not in n and block(n, "distilbert.transformer.layer") in (-1, 3)),
    Case("distilbert", "type", [{"type": "Embedding"}, {"type": "LayerNorm"}],
         trains=lambda n, o: o == "Linear"),
    Case("distilbert", "lora and a thawed layer", [], [{"layers": -1}],
         lambda n, o: block(n, "distilbert.transformer.layer") == 3, ["q_lin", "v_lin"],
         r"distilbert\.transformer\.layer\.[012]\.attention\.[qv]_lin"),
    Case("t5", "freeze", [{"path": "encoder.block"}], trains=lambda n, o: not n.startswith("encoder.block.")),
    Case("t5", "layers", ALL, [{"layers": -1, "of": "decoder.block"}], lambda n, o: block(n, "decoder.block") == 3),
    Case("t5", "type", ALL, [{"type": "T5LayerNorm"}], lambda n, o: o == "T5LayerNorm"),
    Case("t5", "lora and thaw", [{"path": "encoder.block"}], [{"glob": "*.final_layer_norm"}],
         lambda n, o: "final_layer_norm" in n, ["q", "v"], r"decoder\.block\..*\.[qv]"),
    Case("vit", "freeze", ["vit.embeddings"], trains=lambda n, o: not n.startswith("vit.embeddings.")),
    Case("vit", "layers", ALL, ["classifier", {"layers": [0, -1]}],
         lambda n, o: n.startswith("classifier.") or block(n, "vit.layers") in (0, 3)),
    Case("vit", "type", [{"type": "Conv2d"}, {"type": "LayerNorm"}],
         trains=lambda n, o: o not in ("Conv2d", "LayerNorm")),
    Case("vit", "lora and thaw", [], ["classifier"], lambda n, o: n.startswith("classifier."),
         [{"glob": "*.mlp.fc1"}], r"vit\.layers\.\d\.mlp\.fc1"),
    Case("clip", "freeze", ["vision_model", "visual_projection"],
         trains=lambda n, o: not n.startswith(("vision_model.", "visual_projection."))),
    Case("clip", "layers", ALL, [{"layers": -1, "within": "vision_model"}],
         lambda n, o: block(n, "vision_model.encoder.layers") == 3),
    Case("clip", "type", ALL, [{"type": "CLIPMLP", "within": "text_model"}],
         lambda n, o: n.startswith("text_model.") and ".mlp." in n),
    Case("clip", "lora and thaw", [], [{"param": "logit_scale"}], lambda n, o: n == "logit_scale",
         [{"type": "Linear", "within": "text_model"}], r"text_model\.encoder\..*\.(\w_proj|out_proj|fc\d)"),
    # The features of the last but one layer are used: the last vision layer, and the norm behind it, get no gradient.
    Case("llava", "freeze", ["vision_tower"], trains=lambda n, o: not n.startswith("model.vision_tower.")),
    Case("llava", "layers", ALL, [{"layers": "-2:", "of": "language_model.layers"}, "multi_modal_projector"],
         lambda n, o: block(n, "model.language_model.layers") >= 2 or n.startswith("model.multi_modal_projector.")),
    Case("llava", "one tower", ALL, [{"layers": 2, "of": "vision_tower.encoder.layers"}],
         lambda n, o: block(n, "model.vision_tower.encoder.layers") == 2),
    Case("llava", "lora and thaw", ["vision_tower"], ["multi_modal_projector"],
         lambda n, o: n.startswith("model.multi_modal_projector."), ["q_proj"],
         r"model\.language_model\.layers\.\d\.self_attn\.q_proj"),
    Case("whisper", "freeze", [{"path": "model.encoder"}], trains=lambda n, o: not n.startswith("model.encoder.")),
    Case("whisper", "as the model froze itself", trains=lambda n, o: n != "model.encoder.embed_positions.weight"),
    Case("whisper", "layers", ALL, [{"layers": -1, "of": "decoder.layers"}],
         lambda n, o: block(n, "model.decoder.layers") == 3),
    Case("whisper", "type", ALL, [{"type": "Conv1d"}], lambda n, o: o == "Conv1d"),
    Case("whisper", "lora and thaw", [{"path": "model.encoder"}], [{"glob": "model.*coder.layer_norm"}],
         lambda n, o: re.match(r"model\.\w+\.layer_norm\.", n) is not None, ["q_proj"],
         r"model\.decoder\.layers\.\d\.\w+\.q_proj"),
    Case("resnet", "freeze", ["resnet"], trains=lambda n, o: n.startswith("classifier.")),
    Case("resnet", "layers", ALL, [{"layers": "2:", "of": "resnet.encoder.stages"}],
         lambda n, o: block(n, "resnet.encoder.stages") >= 2),
    Case("resnet", "type", [{"type": "BatchNorm2d"}], trains=lambda n, o: o != "BatchNorm2d"),
    Case("resnet", "norms only", ALL, [{"type": "BatchNorm2d", "except": ["embedder"]}],
         lambda n, o: o == "BatchNorm2d" and not n.startswith("resnet.embedder.")),
    Case("resnet", "lora and thaw", [], [{"layers": -1, "of": "resnet.encoder.stages"}],
         lambda n, o: block(n, "resnet.encoder.stages") == 3, ["classifier.1"], r"classifier\.1"),
    Case("mamba", "freeze", ["backbone.embeddings"], trains=lambda n, o: n != "backbone.embeddings.weight"),
    Case("mamba", "layers", ALL, [{"layers": [1]}], lambda n, o: block(n, "backbone.layers") == 1),
    Case("mamba", "type and parameters", ALL, [{"type": "Conv1d"}, {"param": "*.A_log"}],
         lambda n, o: o == "Conv1d" or n.endswith(".A_log")),
    Case("mamba", "lora and thaw", [], [{"type": "MambaRMSNorm"}], lambda n, o: o == "MambaRMSNorm",
         ["in_proj"], r"backbone\.layers\.\d\.mixer\.in_proj"),
    Case("gpt2", "freeze", ["wte", "wpe"],
         trains=lambda n, o: not n.startswith(("transformer.wte.", "transformer.wpe."))),
    Case("gpt2", "layers", ALL, [{"layers": ":2"}, "ln_f"],
         lambda n, o: 0 <= block(n, "transformer.h") < 2 or n.startswith("transformer.ln_f.")),
    Case("gpt2", "type", ALL, [{"type": "Conv1D", "except": ["c_proj"]}],
         lambda n, o: o == "Conv1D" and ".c_proj." not in n),
    Case("gemma", "freeze", ["embed_tokens"], trains=lambda n, o: n != "model.embed_tokens.weight"),
    Case("gemma", "layers", [{"layers": ":-1"}], trains=lambda n, o: block(n, "model.layers") in (-1, 3)),
    Case("gemma", "type", ALL, [{"type": "GemmaMLP"}], lambda n, o: ".mlp." in n),
    Case("gemma", "lora and the tied embedding", [], ["embed_tokens"], lambda n, o: n == "model.embed_tokens.weight",
         ["down_proj"], r"model\.layers\.\d\.mlp\.down_proj"),
    Case("gemma3n", "freeze", ["embed_tokens", "embed_tokens_per_layer"],
         trains=lambda n, o: not n.startswith(("model.embed_tokens.", "model.embed_tokens_per_layer."))),
    Case("gemma3n", "layers", ALL, [{"layers": "2:", "of": "model.layers"}],
         lambda n, o: block(n, "model.layers") >= 2),
    Case("gemma3n", "type", ALL, [{"type": "Gemma3nTextMLP"}], lambda n, o: ".mlp." in n),
    Case("gemma3n", "lora and thaw", [], [{"glob": "*.altup"}], lambda n, o: ".altup." in n,
         ["*_proj"], r"model\.layers\.\d\.\w+\.(q|k|v|o|gate|up|down)_proj"),
]  # fmt: skip


def expected_of(model: nn.Module, case: Case) -> set[str]:
    """By hand: names of what trains, adapters included."""
    expected: set[str] = set()
    for module_name, module in model.named_modules():
        for name, param in module.named_parameters(module_name, recurse=False):
            if param.requires_grad and case.trains(name, type(module).__name__):
                expected.add(name)
        if isinstance(module, nn.Linear) and re.fullmatch(case.adapted, module_name):
            expected |= {f"{module_name}.lora_{factor}.default.weight" for factor in "AB"}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - dict(model.named_parameters()).keys()
    return expected - tied


def buffers_that_move(model: nn.Module) -> set[str]:
    """By hand: statistics of each BatchNorm of which a weight trains."""
    return {
        f"{name}.{buffer}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and any(param.requires_grad for param in module.parameters())
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    }


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_the_table_has_every_architecture_with_each_kind_of_config() -> None:
    labels = {name: [case.label for case in CASES if case.model == name] for name in ARCHITECTURES}
    assert all(len(found) >= 3 and "freeze" in found for found in labels.values()), labels
    assert (
        sum(any(label.startswith("lora") for label in found) for found in labels.values()) == 13
    )  # GPT-2 has no Linear
    assert len(CASES) == sum(map(len, labels.values()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}: {case.label}")
def test_naive_code_and_the_plan_agree_and_exactly_that_moves(case: Case) -> None:
    architecture = ARCHITECTURES[case.model]
    torch.manual_seed(0)
    model = architecture.build()
    with torch.no_grad():
        for param in model.parameters():  # zero biases cannot show weight decay
            param.add_(0.05 * torch.randn_like(param))
    expected = expected_of(model, case)
    with torch.device("meta"):
        planned = resolve(architecture.build(), **case.config)
    assert set(planned.trainable) == expected
    model, plan = prepare(model, **case.config)
    assert plan == planned
    assert {name for name, param in model.named_parameters() if param.requires_grad} == expected
    assert 0 < len(expected) < len(plan.decisions) or case.label == "as the model froze itself"
    assert plan.render().count("\n") < 60

    set_training_mode(model, plan)
    optimizer = torch.optim.AdamW(
        [param for param in model.parameters() if param.requires_grad], lr=1e-2, weight_decay=0.1
    )
    before = {name: tensor.detach().clone() for name, tensor in tensors(model).items()}
    moving = buffers_that_move(model)
    prover = Prover(model, plan)
    for step in range(3):
        architecture.loss(model).backward()
        prover.before_step(step, 1e-2, optimizer)
        optimizer.step()
        prover.after_step()
        optimizer.zero_grad()
    assert "bit-identical" in prover.final_check()
    assert prover.remarks == []
    moved = {name for name, tensor in tensors(model).items() if not torch.equal(tensor, before[name])}
    assert moved == expected | moving
