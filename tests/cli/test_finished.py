"""`evaluate`, `predict`, `export` and `inspect` on a finished run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from frostline.checkpoint import Manifest
from frostline.checkpoint.manifest import describe_files

# peft asks transformers under a name that transformers has replaced; peft's next release can do without.
OLD_NAME = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def done(bench: Any, *args: str, stdin: bytes = b"") -> Any:
    outcome = bench.run(*args, stdin=stdin)
    assert outcome.status == 0, outcome.err
    return outcome


# ---- evaluate


def test_evaluate_scores_as_the_training_did(bench: Any, finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if "validation_loss" in line][-1]
    before = bench.snapshot(bench.folder)
    scores = json.loads(done(bench, "evaluate", "run", "--json", "--checkpoint", "latest").out)
    assert scores["validation"]["loss"] == pytest.approx(last["validation_loss"], rel=1e-6)
    assert scores["validation"]["accuracy"] == last["validation_accuracy"]
    assert bench.snapshot(bench.folder) == before
    text = done(bench, "evaluate", "run").out
    assert "validation (4 examples, step-000002)" in text
    assert "true, predicted" in text


def test_evaluate_other_checkpoints(bench: Any, finished: Path) -> None:
    assert "step-000001" in done(bench, "evaluate", "run", "--checkpoint", "step-1").out
    outcome = bench.refused("evaluate", "run", "--checkpoint", "step-7")
    assert "step-000001" in outcome.part("possible")
    bench.refused("evaluate", "run", "--checkpoint", "newest")


def test_a_run_that_knows_every_byte_of_its_base(bench: Any) -> None:
    bench.config(checkpoint={"fingerprint": "full", "every": 1})
    done(bench, "train", "config.yaml")
    step = bench.folder / "run/checkpoints/step-000002"
    assert Manifest.read(step).base.fingerprint_kind == "full"
    done(bench, "evaluate", "run")
    bench.config(checkpoint={"fingerprint": "sampled", "every": 1})
    shutil.rmtree(step)
    done(bench, "train", "config.yaml", "--resume")
    assert Manifest.read(step).base.fingerprint_kind == "full", "as it began"
    done(bench, "evaluate", "run")


@pytest.mark.parametrize("command", [("evaluate",), ("predict",), ("inspect",), ("export", "out")])
def test_a_run_that_is_not_there(bench: Any, command: tuple[str, ...]) -> None:
    bench.write("folder/file.txt", "x")
    for run in ("nowhere", "folder", "folder/file.txt"):
        bench.refused(command[0], run, *command[1:], stdin=b"good film\n")


def test_a_run_without_a_complete_checkpoint(bench: Any, finished: Path) -> None:
    for manifest in finished.glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    bench.refused("evaluate", "run")
    assert "no complete checkpoint yet" in done(bench, "inspect", "run").out


def test_data_that_has_gone_since_the_training(bench: Any, finished: Path) -> None:
    text = (finished / "config.yaml").read_text(encoding="utf-8")
    (finished / "config.yaml").write_text(text.replace(str(bench.data), "gone.jsonl"), encoding="utf-8")
    assert "run/config.yaml, line" in bench.refused("evaluate", "run").part("where")


def other_data(bench: Any, name: str, rows: list[dict[str, str]]) -> None:
    file = bench.rows(name, rows)
    text = (bench.folder / "run/config.yaml").read_text(encoding="utf-8")
    bench.write("run/config.yaml", text.replace(str(bench.data), str(file)))


def test_evaluate_on_rows_that_the_run_did_not_hold_out(bench: Any, finished: Path) -> None:
    """With more rows the split is another one, and what it holds out has been trained on."""
    other_data(bench, "same.jsonl", bench.texts(24))
    done(bench, "evaluate", "run")
    bench.write("same.jsonl", (bench.folder / "same.jsonl").read_text() + json.dumps(bench.texts(1, 40)[0]) + "\n")
    outcome = bench.refused("evaluate", "run")
    assert "validation examples are not those that the run held out" in outcome.error
    assert "4 examples, other than the 4 of the run" in outcome.part("possible")
    assert "same.jsonl" in outcome.part("where")
    assert bench.run("predict", "run", stdin=b"good film\n").status == 0


def test_evaluate_on_another_test_file(bench: Any) -> None:
    bench.rows("test.jsonl", bench.texts(4, start=100))
    bench.config(data={"test": "test.jsonl"})
    done(bench, "train", "config.yaml")
    done(bench, "evaluate", "run")
    bench.rows("test.jsonl", bench.texts(6, start=100))
    outcome = bench.refused("evaluate", "run")
    assert "test examples are not those" in outcome.error
    assert "6 examples, other than the 4 of the run" in outcome.part("possible")


def test_a_run_that_is_not_complete_says_so(bench: Any, finished: Path) -> None:
    assert "not complete" not in done(bench, "inspect", "run").out + done(bench, "evaluate", "run").err
    shutil.rmtree(finished / "checkpoints/step-000002")
    line = "the run is not complete: it stands at step 1 of 2"
    for command in (("evaluate", "run"), ("predict", "run"), ("export", "run", "out")):
        outcome = done(bench, *command, stdin=b"good film\n")
        assert line in outcome.err
        assert line not in outcome.out
    assert line in done(bench, "inspect", "run").out


# ---- predict


def test_predict_lines_of_standard_input(bench: Any, finished: Path) -> None:
    outcome = done(bench, "predict", "run", stdin="a good film\r\n\nc awful – film\n".encode())
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert [answer["text"] for answer in answers] == ["a good film", "c awful – film"]
    assert {answer["predicted_label"] for answer in answers} <= {"pos", "neg"}


def test_predict_a_file_into_a_file(bench: Any, finished: Path) -> None:
    bench.rows("new.jsonl", [{"id": 7, "text": "good film"}, {"id": 8, "text": "awful film"}])
    outcome = done(bench, "predict", "run", "new.jsonl", "--output", "out.jsonl", "--batch-size", "1")
    assert outcome.out == ""
    answers = [json.loads(line) for line in (bench.folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["id"] for answer in answers] == [7, 8]
    together = done(bench, "predict", "run", "new.jsonl").out
    assert [json.loads(line)["predicted_label"] for line in together.splitlines()] == [
        a["predicted_label"] for a in answers
    ]


def test_predict_into_a_file_that_exists(bench: Any, finished: Path) -> None:
    bench.write("out.jsonl", "mine")
    args = ("predict", "run", "--output", "out.jsonl")
    assert "--overwrite" in bench.refused(*args, stdin=b"good film\n").part("do")
    done(bench, *args, "--overwrite", stdin=b"good film\n")
    assert "good film" in (bench.folder / "out.jsonl").read_text(encoding="utf-8")
    bench.refused("predict", "run", "--overwrite", stdin=b"good film\n")
    bench.refused("predict", "run", "--output", "/dev/null", "--overwrite", stdin=b"good film\n")


def test_predict_without_the_column(bench: Any, finished: Path) -> None:
    bench.rows("new.jsonl", [{"content": "good film"}])
    outcome = bench.refused("predict", "run", "new.jsonl")
    assert "content" in outcome.part("possible")


def test_predict_on_what_cannot_be_read(bench: Any, finished: Path) -> None:
    bench.write("empty.jsonl", "")
    bench.write("bad.jsonl", '{"text": "a"}\n{"text": \n')
    bench.write("latin.csv", "text\ncaf\xe9\n".encode("latin-1"))
    for file in ("nowhere.jsonl", "empty.jsonl", "bad.jsonl", "latin.csv"):
        assert file in bench.refused("predict", "run", file).error
    bench.refused("predict", "run", stdin=b"")
    outcome = bench.refused("predict", "run", stdin=b"good film\ncaf\xe9\n")
    assert "line 2" in outcome.part("where")


def test_predict_into_a_place_that_cannot_be_written_is_known_first(
    bench: Any, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frostline.recipes import finished as module

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr(module.FinishedRun, "load_model", refuse)
    bench.rows("new.jsonl", [{"text": "good film"}])
    for place in ("nowhere/out.jsonl", "run", "new.jsonl/out"):
        bench.refused("predict", "run", "new.jsonl", "--output", place)


def test_predict_passes_dates_of_a_table_through(bench: Any, finished: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": ["good film"], "day": [datetime.date(2024, 2, 29)]})
    pq.write_table(table, bench.folder / "new.parquet")
    answer = json.loads(done(bench, "predict", "run", "new.parquet").out)
    assert answer["day"] == "2024-02-29"


def test_predict_stays_within_the_window_of_a_language_model(bench: Any) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(bench.model)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    LlamaForCausalLM(config).save_pretrained("llama")
    tokenizer.save_pretrained("llama")
    bench.rows("lm.jsonl", [{"text": row["text"]} for row in bench.texts(24)])
    bench.config(recipe="causal_lm", model="llama", peft={"target_modules": ["q_proj"]}, data={"train": "lm.jsonl"})
    done(bench, "train", "config.yaml")
    answer = json.loads(done(bench, "predict", "run", stdin=b"a good film\n").out)
    assert len(answer["generated"].split()) <= 8
    assert "1 to 15" in bench.refused("predict", "run", "--max-new-tokens", "16", stdin=b"a good film\n").error


# ---- export


@OLD_NAME
def test_export_to_peft_gives_the_same_logits(bench: Any, finished: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    done(bench, "export", "run", "out")
    merged = done(bench, "export", "run", "full", "--to", "merged")
    assert "merged export of" in merged.out
    tokenizer = AutoTokenizer.from_pretrained("out")
    batch = tokenizer(["a good film", "b awful film c"], padding=True, return_tensors="pt")
    base = AutoModelForSequenceClassification.from_pretrained(bench.model, num_labels=2)
    peft = PeftModel.from_pretrained(base, "out").eval()
    full = AutoModelForSequenceClassification.from_pretrained("full").eval()
    with torch.no_grad():
        torch.testing.assert_close(peft(**batch).logits, full(**batch).logits, rtol=1e-5, atol=1e-6)
    assert full.config.id2label == {0: "neg", 1: "pos"}


def test_export_into_a_folder_that_holds_something(bench: Any, finished: Path) -> None:
    bench.write("out/thesis.tex", "years of work")
    bench.write("file", "x")
    (bench.folder / "empty").mkdir()
    (bench.folder / "dangling").symlink_to("nowhere/at/all")
    bench.refused("export", "run", "out")
    bench.refused("export", "run", "file")
    bench.refused("export", "run", "file/inside")
    bench.refused("export", "run", "run")
    bench.refused("export", "run", "x" * 300)
    done(bench, "export", "run", "empty")
    assert (bench.folder / "empty" / "adapter_config.json").is_file()


def test_export_of_the_current_folder_and_through_a_link(bench: Any, finished: Path, monkeypatch: Any) -> None:
    (bench.folder / "here").mkdir()
    (bench.folder / "there").mkdir()
    (bench.folder / "link").symlink_to("there")
    done(bench, "export", "run", "link")
    assert (bench.folder / "link").is_symlink()
    assert (bench.folder / "there" / "adapter_config.json").is_file()
    monkeypatch.chdir(bench.folder / "here")
    done(bench, "export", "../run", ".")
    monkeypatch.chdir(bench.folder)
    assert (bench.folder / "here" / "adapter_config.json").is_file()


def test_export_that_fails_leaves_no_folder_behind(bench: Any, finished: Path) -> None:
    path = finished / "checkpoints/step-000002/adapter/adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    bench.refused("export", "run", "new/deep/out")
    bench.refused("export", "run", "new/deep/out", "--to", "merged")


def test_export_of_a_run_without_adapter(bench: Any, finished_freeze: Path) -> None:
    outcome = bench.refused("export", "run", "new/out", "--to", "peft")
    assert "merged" in outcome.part("do")
    done(bench, "export", "run", "new/out", "--to", "merged")
    assert (bench.folder / "new/out/model.safetensors").is_file()


# ---- inspect


def test_inspect_a_run_a_checkpoint_and_an_adapter(bench: Any, finished: Path) -> None:
    before = bench.snapshot(bench.folder)
    run = done(bench, "inspect", "run", "--check").out
    assert "step-000002  epoch 0.667" in run
    assert "latest, best" in run
    assert "every file of every checkpoint is as written" in run
    checkpoint = done(bench, "inspect", "run/checkpoints/step-000001", "--check").out
    assert "step       1" in checkpoint
    assert "every value is finite" in checkpoint
    adapter = done(bench, "inspect", "run/adapter", "--check").out
    assert "LoRA rank 2, alpha 4" in adapter
    assert "classifier.weight" in adapter
    assert bench.snapshot(bench.folder) == before


def test_inspect_checks_the_values_of_the_optimizer(bench: Any, finished: Path) -> None:
    """A run may have written them like that: the hash is right."""
    path = finished / "checkpoints" / "step-000001"
    assert "every value of the optimizer's state is finite" in done(bench, "inspect", str(path), "--check").out
    file = next(path.glob("state/optimizer/*.safetensors"))
    tensors = load_file(file)
    name = next(name for name, value in tensors.items() if value.is_floating_point() and value.dim() > 0)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file)
    replace(Manifest.read(path), files=describe_files(path)).write(path)
    done(bench, "inspect", "run")
    for place in ("run", str(path)):
        outcome = bench.refused("inspect", place, "--check")
        assert f"not finite: {name}" in outcome.error
        assert file.name in outcome.part("where")


def test_inspect_a_run_without_adapter(bench: Any, finished_freeze: Path) -> None:
    assert "trained" in done(bench, "inspect", "run", "--check").out
    assert "trained" in done(bench, "inspect", "run/checkpoints/latest").out
    assert "tensors" in done(bench, "inspect", "run/trained", "--check").out


@OLD_NAME
def test_inspect_an_adapter_that_peft_wrote(bench: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(bench.model, num_labels=2)
    get_peft_model(base, LoraConfig(r=3, target_modules=["value"], task_type="SEQ_CLS")).save_pretrained("theirs")
    shown = done(bench, "inspect", "theirs", "--check").out
    assert "LoRA rank 3" in shown
    assert "2 modules" in shown


@pytest.mark.parametrize("name", ["adapter/labels.json", "adapter/tokenizer.json", "state/progress.json", "plan.json"])
def test_check_finds_an_edited_file(bench: Any, finished: Path, name: str) -> None:
    path = finished / "checkpoints/step-000001" / name
    path.write_bytes(path.read_bytes() + b" ")
    done(bench, "inspect", "run")
    assert name in bench.refused("inspect", "run", "--check").error


def test_check_finds_values_that_are_not_finite_in_an_adapter_alone(bench: Any, finished: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(finished / "adapter", bench.folder / "shared")
    file = bench.folder / "shared" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, file)
    assert name in bench.refused("inspect", "shared", "--check").error


def test_inspect_says_how_the_size_of_a_checkpoint_splits(bench: Any, finished: Path) -> None:
    lines = done(bench, "inspect", "run").out.splitlines()
    size = next(line for line in lines if line.startswith("size "))
    whole, trained, optimizer, rest = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", size))
    newest = bench.folder / "run/checkpoints/best"
    assert trained == (newest / "adapter/adapter_model.safetensors").stat().st_size
    state = [path for path in (newest / "state").rglob("*") if path.is_file() and "optimizer" in str(path)]
    assert optimizer == sum(path.stat().st_size for path in state) > trained
    assert whole == trained + optimizer + rest
    assert any(f"  {whole:,} bytes  " in line for line in lines if "best" in line)
