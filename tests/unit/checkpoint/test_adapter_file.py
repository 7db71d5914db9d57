"""What we write, the installed peft loads with the same outputs; what peft writes, we load."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from frostline.checkpoint import (
    BaseIdentity,
    read_adapter,
    write_adapter,
)
from frostline.checkpoint.adapter_file import match_adapter
from frostline.checkpoint.tensor_file import put_tensors
from frostline.errors import CheckpointError
from frostline.sharing import load_adapter

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

QUERY = [{"glob": "*.query"}]
TOKENS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]])


def load_adapter_tensors(*arguments: Any, **options: Any) -> int:
    tensors = match_adapter(*arguments, **options)
    put_tensors(arguments[0], tensors)
    return len(tensors)


def bert(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        num_labels=3,
        initializer_range=0.4,  # so that attention, and an adapter on it, has an effect
    )
    return transformers.BertForSequenceClassification(config).eval()


def distilbert(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.DistilBertConfig(
        vocab_size=20,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=16,
        num_labels=3,
        initializer_range=0.4,
    )
    return transformers.DistilBertForSequenceClassification(config).eval()


def llama(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(input_ids=TOKENS).logits


def loaded_in_peft(base: nn.Module, directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(base, str(directory)).eval()
    # peft loads with strict=False and says nothing of keys that landed nowhere: look at each tensor.
    held = list(model.state_dict().values())
    for key, tensor in load_file(directory / "adapter_model.safetensors").items():
        assert any(item.shape == tensor.shape and torch.equal(item, tensor) for item in held), f"{key} landed nowhere"
    return model


CASES: dict[str, dict[str, Any]] = {
    "lora only": {"build": llama, "lora": [{"glob": "*_proj"}], "task": "CAUSAL_LM"},
    "rslora, alpha, one layer": {
        "build": llama,
        "lora": [{"path": "model.layers.1.mlp.up_proj"}],
        "task": "CAUSAL_LM",
        "use_rslora": True,
        "alpha": 3.5,
    },
    "new head": {"build": bert, "lora": QUERY, "new": ["classifier.weight", "classifier.bias"], "task": "SEQ_CLS"},
    "thawed norms": {
        "build": bert,
        "lora": QUERY,
        "freeze": {"unfreeze_modules": [{"type": "LayerNorm"}, "classifier"]},
        "task": "SEQ_CLS",
    },
    "one bare bias": {
        "build": bert,
        "lora": QUERY,
        "freeze": {"unfreeze_modules": [{"param": "bert.pooler.dense.bias"}, "classifier"]},
        "task": "SEQ_CLS",
    },
    "biases of adapted modules too": {
        "build": bert,
        "lora": QUERY,
        "freeze": {"unfreeze_modules": [{"param": "*.bias"}, "classifier"]},
        "task": "SEQ_CLS",
    },
    "a whole layer": {
        "build": bert,
        "lora": [{"path": "bert.encoder.layer.0.attention.self.query"}],
        "freeze": {"unfreeze_modules": [{"path": "bert.encoder.layer.1"}, "classifier"]},
        "task": "SEQ_CLS",
    },
    "frozen head": {"build": bert, "lora": QUERY, "task": "SEQ_CLS"},
    "adapter on the head": {"build": bert, "lora": [*QUERY, {"path": "classifier"}], "task": "SEQ_CLS"},
    "pre_classifier frozen": {
        "build": distilbert,
        "lora": [{"glob": "*.q_lin"}],
        "new": ["classifier.weight", "classifier.bias"],
        "task": "SEQ_CLS",
    },
    "both classifiers": {
        "build": distilbert,
        "lora": [{"glob": "*.q_lin"}],
        "new": [f"{name}.{leaf}" for name in ("classifier", "pre_classifier") for leaf in ("weight", "bias")],
        "task": "SEQ_CLS",
    },
    "tied embedding": {
        "build": llama,
        "lora": [{"glob": "*.q_proj"}],
        "freeze": {"unfreeze_modules": ["embed_tokens", "lm_head"]},
        "task": "CAUSAL_LM",
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["default", "weight", "encoder"])
def test_peft_gives_the_same_logits(case: str, name: str, tmp_path: Path, prepared: Callable[..., Any]) -> None:
    options = dict(CASES[case])
    build, task = options.pop("build"), options.pop("task")
    model, plan = prepared(build(), name=name, **options)
    model.eval()
    layout = write_adapter(model, plan, tmp_path, BaseIdentity("org/base", "main"), task_type=task)
    assert not layout.inexpressible
    expected = logits(model)
    assert not torch.allclose(expected, logits(build()), atol=1e-3)
    torch.testing.assert_close(logits(loaded_in_peft(build(), tmp_path)), expected, rtol=0, atol=1e-5)
    again, loaded_plan = load_adapter(build(), tmp_path, adapter="other")
    torch.testing.assert_close(logits(again.eval()), expected, rtol=0, atol=0)
    assert loaded_plan.num_trainable == plan.num_trainable


def written(
    tmp_path: Path, prepared: Callable[..., Any], case: str, **more: Any
) -> tuple[Any, dict[str, Any], set[str]]:
    options = {**CASES[case], **more}
    build, task = options.pop("build"), options.pop("task")
    model, plan = prepared(build(), **options)
    layout = write_adapter(model, plan, tmp_path, BaseIdentity("org/base", "main"), task_type=task)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    return (
        layout,
        config,
        {key.removeprefix("base_model.model.") for key in load_file(tmp_path / "adapter_model.safetensors")},
    )


def test_a_new_head_goes_through_modules_to_save(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    layout, config, keys = written(tmp_path, prepared, "new head")
    assert config["modules_to_save"] == ["classifier"]
    assert config["target_modules"] == ["query"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 4, "SEQ_CLS")
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", "main")
    attention = "bert.encoder.layer.{}.attention.self.query.lora_{}.weight"
    assert keys == {attention.format(i, letter) for i in (0, 1) for letter in "AB"} | {
        "classifier.weight",
        "classifier.bias",
    }
    assert layout.notes == ()


def test_a_name_that_peft_would_read_too_widely_becomes_plain_tensors(
    tmp_path: Path, prepared: Callable[..., Any]
) -> None:
    layout, config, keys = written(tmp_path, prepared, "pre_classifier frozen")
    assert config["modules_to_save"] is None
    assert config["task_type"] is None
    assert not any(key.startswith("pre_classifier") for key in keys)
    assert "pre_classifier" in layout.notes[0]
    assert layout.notes[1].startswith("classifier is saved as plain tensors")
    (tmp_path / "both").mkdir()
    _, config, _ = written(tmp_path / "both", prepared, "both classifiers")
    assert (config["modules_to_save"], config["task_type"]) == (["classifier"], "SEQ_CLS")


def test_single_parameters_of_adapted_modules_get_base_layer(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    _, config, keys = written(tmp_path, prepared, "biases of adapted modules too")
    assert "bert.encoder.layer.0.attention.self.query.base_layer.bias" in keys
    assert "bert.encoder.layer.0.attention.self.key.bias" in keys
    assert config["modules_to_save"] == ["classifier"]


def test_case_112_113_every_key_is_used_and_the_file_holds_no_more_than_it_must(
    tmp_path: Path, prepared: Callable[..., Any]
) -> None:
    model, plan = prepared(bert(), lora=QUERY, new=["classifier.weight", "classifier.bias"], rank=8)
    write_adapter(model, plan, tmp_path, task_type="SEQ_CLS")
    num_bytes = 4 * plan.num_trainable
    assert sum(tensor.nbytes for tensor in load_file(tmp_path / "adapter_model.safetensors").values()) == num_bytes
    loaded_in_peft(bert(), tmp_path)


def test_case_99_and_127_exact_adapter_names(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    from frostline.adapters import LoRA, inject
    from frostline.trainability import plan_of

    model, _ = prepared(bert(), lora=QUERY, name="foo")
    inject(model, LoRA(rank=3, target_modules=[{"glob": "*.key"}]), adapter="foobar")
    plan = plan_of(model).bind(model)
    with pytest.raises(CheckpointError, match=r"the model has 2 adapters(.|\n)*foo, foobar"):
        write_adapter(model, plan, tmp_path)
    write_adapter(model, plan, tmp_path, adapter="foo")
    file = read_adapter(tmp_path)
    assert file.config["target_modules"] == ["query"]
    assert len(file.tensors) == 4
    assert all(".query." in key and "foo" not in key for key in file.tensors)
    with pytest.raises(CheckpointError, match="no adapter 'bar'"):
        write_adapter(model, plan, tmp_path, adapter="bar")


def test_case_95_and_110_no_wrapper_parts_in_the_keys(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    model, plan = prepared(bert(), lora=QUERY)
    write_adapter(model, plan, tmp_path / "a")
    write_adapter(torch.compile(model, backend="eager"), plan, tmp_path / "b")  # pyright: ignore[reportArgumentType]
    assert read_adapter(tmp_path / "a").tensors.keys() == read_adapter(tmp_path / "b").tensors.keys()


def test_cases_93_94_96_renamed_missing_and_surplus_tensors_are_named(
    tmp_path: Path, prepared: Callable[..., Any]
) -> None:
    model, plan = prepared(bert(), lora=QUERY)
    write_adapter(model, plan, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    key = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
    before = {path: value.clone() for path, value in model.state_dict().items()}

    save_file({name.replace("base_model.model.", "model."): value for name, value in tensors.items()}, file)
    with pytest.raises(CheckpointError, match="4 of 4 tensors have no name in peft's layout"):
        read_adapter(tmp_path)
    save_file({name.replace("query", "key"): value for name, value in tensors.items()}, file)
    with pytest.raises(CheckpointError, match=r"0 of 4 expected tensors found; missing bert.encoder"):
        load_adapter_tensors(model, plan, read_adapter(tmp_path))
    save_file({name: value for name, value in tensors.items() if name != key}, file)
    with pytest.raises(
        CheckpointError, match=r"3 of 4 expected(.|\n)*layer.0.attention.self.query.lora_A.default.weight"
    ):
        load_adapter_tensors(model, plan, read_adapter(tmp_path))
    save_file({**tensors, key: tensors[key][:1].contiguous()}, file)
    with pytest.raises(CheckpointError, match=r"has shape \[1, 16\], in the model \[2, 16\]"):
        load_adapter_tensors(model, plan, read_adapter(tmp_path))
    save_file({**tensors, key: tensors[key] * float("nan")}, file)
    with pytest.raises(CheckpointError, match="holds values that are not finite"):
        load_adapter_tensors(model, plan, read_adapter(tmp_path))
    save_file({**tensors, "base_model.model.classifier.bias": torch.ones(3)}, file)
    with pytest.raises(CheckpointError, match=r"unexpected base_model.model.classifier.bias"):
        load_adapter_tensors(model, plan, read_adapter(tmp_path))
    assert all(torch.equal(value, before[path]) for path, value in model.state_dict().items())
    assert load_adapter_tensors(model, plan, read_adapter(tmp_path), allow_plan_change=True) == 5
    assert torch.equal(model.get_parameter("classifier.bias"), torch.ones(3))


def test_pickles_damage_and_other_methods_are_refused(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    with pytest.raises(CheckpointError, match="there is no adapter here"):
        read_adapter(tmp_path)
    model, plan = prepared(bert(), lora=QUERY)
    write_adapter(model, plan, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is damaged"):
        read_adapter(tmp_path)
    torch.save({"a": torch.ones(1)}, file)
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is a pickle, which is never loaded"):
        read_adapter(tmp_path)
    file.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin is a pickle, which is never loaded"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(CheckpointError, match="peft_type is 'IA3'"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"adapter_config.json is damaged"):
        read_adapter(tmp_path)


@pytest.mark.parametrize("fault", ["nan", "meta"])
def test_case_102_nothing_unsound_is_written(tmp_path: Path, prepared: Callable[..., Any], fault: str) -> None:
    model, plan = prepared(bert(), lora=QUERY)
    if fault == "nan":
        model.get_parameter("bert.encoder.layer.1.attention.self.query.lora_B.default.weight").data[0, 0] = float("nan")
    else:
        model.to("meta")
    message = {"nan": "query.lora_B.default.weight holds values that are not finite", "meta": "has no values"}[fault]
    with pytest.raises(CheckpointError, match=message):
        write_adapter(model, plan, tmp_path)
    assert not list(tmp_path.iterdir())


def test_case_102_a_shard_is_no_factor(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    model, plan = prepared(bert(), lora=QUERY)
    factor = model.get_submodule("bert.encoder.layer.1.attention.self.query.lora_A.default")
    factor.weight = nn.Parameter(torch.ones(1, 16))
    with pytest.raises(CheckpointError, match=r"has shape \[1, 16\], which does not fit rank 2"):
        write_adapter(model, plan, tmp_path)


def test_cases_32_and_117_statistics_and_thawed_modules_come_along(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module], train: Callable[..., Any]
) -> None:
    freeze = {"frozen_mode": "train", "unfreeze_modules": ["head"]}
    model, plan = prepared(tiny_net(), lora=[{"glob": "*.proj"}], freeze=freeze)
    train(model.train(), torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), 3)
    write_adapter(model, plan, tmp_path)
    names = {key.removeprefix("base_model.model.") for key in read_adapter(tmp_path).tensors}
    assert {"blocks.0.norm.running_mean", "blocks.1.norm.num_batches_tracked", "head.weight", "head.bias"} <= names
    other, other_plan = prepared(tiny_net(), lora=[{"glob": "*.proj"}], freeze=freeze)
    load_adapter_tensors(other, other_plan, read_adapter(tmp_path))
    tokens = torch.arange(8)
    assert torch.equal(model.eval()(tokens), other.eval()(tokens))
    assert torch.equal(loaded_in_peft(tiny_net(), tmp_path)(tokens), model(tokens))


def test_statistics_of_frozen_parts_stay_out(
    tmp_path: Path, prepared: Callable[..., Any], tiny_net: Callable[..., nn.Module]
) -> None:
    model, plan = prepared(tiny_net(), lora=[{"glob": "*.proj"}])
    write_adapter(model, plan, tmp_path)
    assert len(read_adapter(tmp_path).tensors) == 4


def test_a_trained_tensor_that_peft_renames_is_announced(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    inner = nn.ModuleDict({"lora_gate": nn.Linear(2, 2), "fc": nn.Linear(2, 2)})
    model = nn.ModuleDict({"lora_gate": nn.Linear(2, 2), "a": inner})
    model, plan = prepared(model, lora=["fc"], freeze={"unfreeze_modules": [{"param": "*lora_gate.bias"}]})
    layout = write_adapter(model, plan, tmp_path)
    assert sorted(layout.inexpressible) == ["a.lora_gate.bias", "lora_gate.bias"]


def test_an_adapter_that_peft_wrote_is_loaded(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["query", "dense"], task_type="SEQ_CLS", use_rslora=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.get_peft_model(bert(), config).eval()
        torch.manual_seed(3)
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.2)
        theirs.save_pretrained(str(tmp_path))
    model, plan = load_adapter(bert(), tmp_path)
    torch.testing.assert_close(logits(model.eval()), logits(theirs), rtol=0, atol=1e-5)
    assert plan.decisions["classifier.weight"].trains


def test_a_model_without_adapters_is_sent_to_save_trained(tmp_path: Path, prepared: Callable[..., Any]) -> None:
    model, plan = prepared(bert(), freeze={"freeze_modules": ["bert"]})
    with pytest.raises(CheckpointError, match=r"the model has 0 adapters(.|\n)*save_trained"):
        write_adapter(model, plan, tmp_path)
