"""Runs that train rows of a table, from the command line to peft and transformers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from frostline.cli import main
from frostline.config.yaml_file import dump_yaml

from .conftest import make_llama

Make = Callable[..., dict[str, Any]]
ROWS = {"param": "*.embed_tokens.weight", "rows": "-5:"}
BOTH = [ROWS, {"param": "lm_head.weight", "rows": "-5:"}]
FREEZE = {"freeze_modules": ["*"], "unfreeze_modules": BOTH}
TOKENS = torch.arange(24).reshape(3, 8) % 40
VOCABULARY = 40


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`frostline ARGS` in this process; what it printed."""

    def run(*args: str | Path, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["frostline", *map(str, args)])
        capsys.readouterr()
        ended: Any = 0
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
        printed = capsys.readouterr()
        assert ended == status, printed.err
        return printed.out + printed.err

    return run


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_rows_and_adapters_from_config_to_other_tools(
    tied: bool, converse: Make, cli: Callable[..., str], launch: Any, in_peft: Any, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path / "base", tie_word_embeddings=tied)
    config = tmp_path / "run.yaml"
    values = converse(model=str(folder), freeze_config={"unfreeze_modules": [ROWS]}, output_dir=str(tmp_path / "run"))
    config.write_text(dump_yaml(values))
    screen = cli("plan", config)
    line = next(line for line in screen.splitlines() if "rows" in line and "embed_tokens" in line)
    assert re.match(r" +embed_tokens  rows 35:40 \(5 of 40\) +80", line)
    assert "unfreeze_modules param" in screen
    assert "vLLM no (trained rows)" in screen
    record = json.loads(cli("plan", config, "--json"))
    assert record["parameters"]["model.embed_tokens.trained_rows"]["rows"] == "35:40"
    cli("train", config)
    said = cli("inspect", tmp_path / "run", "--check")
    assert "rows       35:40 of model.embed_tokens" in said
    assert "loss" in cli("evaluate", tmp_path / "run")
    cli("export", tmp_path / "run", tmp_path / "merged", "--to", "merged")
    cli("export", tmp_path / "run", tmp_path / "peft")
    from frostline.recipes.finished import FinishedRun

    run = FinishedRun.open(tmp_path / "run", "latest")
    model, _ = run.load_model(run.assemble(with_data=False), torch.device("cpu"))
    ours = logits(model)
    base = AutoModelForCausalLM.from_pretrained(folder)
    before = base.get_input_embeddings().weight.detach().clone()
    assert (ours - logits(base)).abs().max() > 1e-3
    assert (logits(in_peft(base, tmp_path / "peft")) - ours).abs().max() <= 1e-5
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(merged) - ours).abs().max() <= 1e-5
    table = merged.get_input_embeddings().weight
    assert torch.equal(table[:35], before[:35])
    assert not torch.equal(table[35:], before[35:])
    assert tied == (table is merged.get_output_embeddings().weight)


def test_a_run_that_trains_rows_alone(
    converse: Make, cli: Callable[..., str], tmp_path: Path, resumes_bit_for_bit: Any, launch: Any
) -> None:
    config = tmp_path / "run.yaml"
    values = converse(peft=None, freeze_config=FREEZE, output_dir=str(tmp_path / "run"))
    values["optimizer"] = {"lr": 0.05, "weight_decay": 0.5}
    config.write_text(dump_yaml(values))
    run = launch(config)
    assert set(run.tensors) == {"model.embed_tokens.trained_rows"}
    record = json.loads((run.checkpoint / "trained" / "trained.json").read_text())
    assert record["rows"] == {"model.embed_tokens.trained_rows": [35, 36, 37, 38, 39]}
    resumes_bit_for_bit(run, config, step=2)
    assert "rows       35:40 of model.embed_tokens" in cli("inspect", run.folder)
    assert "--to merged" in cli("export", run.folder, tmp_path / "peft", "--to", "peft", status=2)
    cli("export", run.folder, tmp_path / "merged", "--to", "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(values["model"])
    assert (logits(merged) - logits(run.model())).abs().max() <= 1e-5
    for (name, after), before in zip(merged.named_parameters(), base.parameters(), strict=True):
        equal = after.eq(before)
        if name == "model.embed_tokens.weight":
            assert equal[:35].all()
            assert not equal[35:].all()
        else:
            assert equal.all(), name


def test_a_resume_with_other_rows_is_refused(
    converse: Make, cli: Callable[..., str], launch: Any, tmp_path: Path
) -> None:
    values = converse(peft=None, freeze_config=FREEZE)
    launch(values)
    other = [{**selector, "rows": "-4:"} for selector in BOTH]
    config = tmp_path / "other.yaml"
    config.write_text(
        dump_yaml(
            {**values, "freeze_config": {**FREEZE, "unfreeze_modules": other}, "output_dir": str(tmp_path / "run")}
        )
    )
    assert "freeze_config" in cli("train", config, "--resume", status=2)
    said = cli("train", config, "--resume", "--allow-plan-change", status=2)
    assert "only in the file: 35" in said


def test_a_run_on_half_precision_keeps_its_rows_in_float32_and_writes_the_base_s_dtype(
    converse: Make, cli: Callable[..., str], launch: Any, tmp_path: Path
) -> None:
    values = converse(freeze_config={"unfreeze_modules": [ROWS]})
    values["model"] = {"name_or_path": values["model"], "dtype": "bfloat16"}
    run = launch({**values, "training": {**values["training"], "precision": "bf16"}})
    rows = next(tensor for name, tensor in run.tensors.items() if "token_adapter" in name)
    assert rows.dtype == torch.float32
    assert "written in bfloat16" in cli("export", run.folder, tmp_path / "merged", "--to", "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.bfloat16
    assert torch.equal(merged.get_input_embeddings().weight[35:], rows.to(torch.bfloat16))


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({"unfreeze_modules": [{**ROWS, "rows": "41:"}]}, "bound 41 is outside the table"),
    "norm": ({"unfreeze_modules": [{"param": "*.norm.weight", "rows": 1}]}, "it belongs to a LlamaRMSNorm"),
    "no match": ({"unfreeze_modules": [{"param": "embed.weight", "rows": 1}]}, "matched 0 parameters"),
    "text": ({"unfreeze_modules": [{**ROWS, "rows": "many"}]}, '`rows` is "many", which is no slice'),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_with_their_line(name: str, converse: Make, cli: Callable[..., str], tmp_path: Path) -> None:
    freeze, message = MISTAKES[name]
    config = tmp_path / "run.yaml"
    config.write_text(dump_yaml(converse(freeze_config=freeze)))
    said = cli("plan", config, status=2)
    assert message in said
    assert re.search(r"where: .*run.yaml, line \d+", said)
    assert "Traceback" not in said


def test_rows_of_an_encoder_s_table_with_a_new_head(classify: Make, launch: Any, in_peft: Any, tmp_path: Path) -> None:
    """A classification: the new head is saved in full beside the rows."""
    run = launch(
        classify(freeze_config={"unfreeze_modules": [{"param": "*.word_embeddings.weight", "rows": [20, 21]}]})
    )
    config = json.loads((run.checkpoint / "adapter" / "adapter_config.json").read_text())
    assert config["trainable_token_indices"] == [20, 21]
    assert config["modules_to_save"]
    model = run.model()
    held = run.planned.assembly.load_model()
    theirs = in_peft(held.model, run.checkpoint / "adapter")
    tokens = torch.tensor([[4, 20, 21, 5]])
    with torch.no_grad():
        assert (theirs(input_ids=tokens).logits - model(input_ids=tokens).logits).abs().max() <= 1e-5
