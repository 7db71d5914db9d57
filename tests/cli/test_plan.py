"""`frostline plan`: the screen, --json, --diff, --data, overrides; loads no weights and writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def planned(bench: Any, *args: str) -> str:
    before = bench.snapshot(bench.folder)
    outcome = bench.run("plan", *args)
    assert outcome.status == 0, outcome.err
    assert bench.snapshot(bench.folder) == before
    return outcome.out


def test_a_misspelled_best_metric_is_known_to_the_plan(bench: Any) -> None:
    bench.config(evaluation={"at_start": False, "best": {"metric": "acuracy", "mode": "max"}})
    outcome = bench.refused("plan", "config.yaml")
    assert "config.yaml, line" in outcome.part("where")
    assert outcome.part("possible") == "did you mean `accuracy`? accuracy, loss, macro_f1"


def test_the_screen_says_who_trains_and_why(bench: Any) -> None:
    bench.config()
    screen = planned(bench, "config.yaml")
    lines = {line.split("  ")[0].strip(): line for line in screen.splitlines()}
    assert "trains   162 of" in screen  # 2 x 2 x 16 x 2 of LoRA and 2 x 16 + 2 of the head
    assert 'target_modules "query" (2 modules)' in screen
    assert "NEW" in lines["classifier"]
    assert "24 read, 20 + 4 used, 2 labels" in screen
    assert "2 = 2 (max_steps)" in screen


def test_no_weights_are_read(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForSequenceClassification

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a plan loads no weights")

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", refuse)
    bench.config()
    planned(bench, "config.yaml")


def test_json_is_the_same_plan(bench: Any) -> None:
    bench.config()
    record = json.loads(planned(bench, "config.yaml", "--json"))
    assert record["digest"][:8] == planned(bench, "config.yaml").rstrip().splitlines()[-1].split()[-1]
    assert record["facts"]["steps"].startswith("2 = 2")
    trains = [path for path, entry in record["parameters"].items() if entry["trains"]]
    assert "classifier.weight" in trains
    assert "bert.encoder.layer.1.attention.self.query.lora_A.default.weight" in trains


def test_diff_names_what_only_one_of_two_configs_trains(bench: Any) -> None:
    bench.config("one.yaml")
    bench.config("two.yaml", peft={"target_modules": ["query", "value"]})
    lines = planned(bench, "one.yaml", "--diff", "two.yaml")
    assert "value.lora_A" in lines
    assert "query.lora_A" not in lines
    assert "the same parameters train" in planned(bench, "one.yaml", "--diff", "one.yaml")


def test_diff_with_a_broken_config_names_that_file(bench: Any) -> None:
    bench.config("one.yaml")
    bench.config("two.yaml", peft={"rank": 0})
    assert "two.yaml, line" in bench.refused("plan", "one.yaml", "--diff", "two.yaml").part("where")


def test_equal_differences_are_one_line_with_both_rules(bench: Any) -> None:
    bench.config("one.yaml", peft=None, freeze_config={"freeze_modules": ["bert"]})
    bench.config("two.yaml", peft=None, freeze_config={"freeze_modules": ["bert"], "unfreeze_modules": ["query"]})
    lines = planned(bench, "one.yaml", "--diff", "two.yaml").splitlines()
    assert len(lines) == 1  # weight and bias of both layers
    assert lines[0].startswith("~ bert.encoder.layer.0-1.attention.self.query (4 parameters): frozen -> trained")
    assert 'freeze_modules "bert" -> line' in lines[0]
    assert 'unfreeze_modules "query")' in lines[0]


def test_diff_takes_a_run_folder_and_its_plan(bench: Any, finished: Path) -> None:
    bench.config("other.yaml", peft={"rank": 4})
    for other in (finished, finished / "plan.json"):
        assert "the same parameters train" in planned(bench, "config.yaml", "--diff", str(other))
        assert "shape [4, 16] -> [2, 16]" in planned(bench, "other.yaml", "--diff", str(other))
    record = json.loads(planned(bench, "other.yaml", "--diff", str(finished), "--json"))
    assert record["same"] is False
    assert record["digest"] != record["other_digest"]
    first = record["differences"][0]
    assert first["sign"] == "~"
    assert first["num_parameters"] == 2
    assert first["path"] == "bert.encoder.layer.0-1.attention.self.query.lora_A.default.weight"


def test_plans_that_differ_in_a_phase_rate_alone_are_not_the_same(bench: Any) -> None:
    for name, rate in (("one.yaml", 1e-3), ("two.yaml", 1e-4)):
        phases = [{"at": {"step": 1}, "unfreeze_modules": ["query"], "lr": rate}]
        bench.config(name, peft=None, freeze_config={"freeze_modules": ["bert"], "phases": phases})
    record = json.loads(planned(bench, "one.yaml", "--diff", "two.yaml", "--json"))
    assert record["digest"] == record["other_digest"]  # the same tensors train
    assert record["same"] is False
    assert [line["what"] for line in record["differences"]] == ["lr 0.001 -> 0.0001"]
    assert json.loads(planned(bench, "one.yaml", "--diff", "one.yaml", "--json"))["same"] is True


def test_diff_with_something_else_says_what_it_takes(bench: Any, finished: Path) -> None:
    bench.write("empty/.keep", "")
    bench.write("broken.json", "{")
    bench.write("foreign.json", '{"format_version": 1, "parameters": {"a": {"trains": true}}, "digest": "x"}')
    newer = json.loads((finished / "plan.json").read_text()) | {"format_version": 9}
    bench.write("newer.json", json.dumps(newer))
    assert "a run folder" in bench.refused("plan", "config.yaml", "--diff", "empty").part("possible")
    assert "is damaged" in bench.refused("plan", "config.yaml", "--diff", "broken.json").error
    bench.write("number.json", '{"format_version": 1, "parameters": {"a": 3}, "digest": "x"}')
    bench.write("list.json", '{"format_version": 1, "parameters": [], "digest": "x"}')
    for file in ("foreign.json", "number.json"):
        assert "the parameter a has no `trains`" in bench.refused("plan", "config.yaml", "--diff", file).error
    assert "`parameters` are no mapping" in bench.refused("plan", "config.yaml", "--diff", "list.json").error
    assert "format_version is 9" in bench.refused("plan", "config.yaml", "--diff", "newer.json").error
    step = next((finished / "checkpoints").glob("step-*/plan.json"))
    assert "record of what trains" in bench.refused("plan", "config.yaml", "--diff", str(step)).error
    assert "nothing.yaml" in bench.refused("plan", "config.yaml", "--diff", "nothing.yaml").error


def test_the_page_is_written_whole_and_an_earlier_one_replaced(bench: Any) -> None:
    bench.config()
    outcome = bench.run("plan", "config.yaml", "--html", "plan.html", "--devices", "dp_shard=2")
    assert outcome.status == 0, outcome.err
    page = (bench.folder / "plan.html").read_text(encoding="utf-8")
    assert "each of 2 devices" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert bench.run("plan", "config.yaml", "peft.rank=4", "--html", "plan.html").status == 0
    assert "LoRA r4" in (bench.folder / "plan.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in bench.folder.iterdir()) == ["config.yaml", "plan.html"]


def test_the_page_of_a_model_that_a_factory_builds_is_named_after_it(bench: Any) -> None:
    bench.write(
        "page_models.py",
        "from transformers import BertConfig, BertForSequenceClassification\n\n\n"
        "def bert(num_labels=2):\n"
        "    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)\n"
        "    return BertForSequenceClassification(BertConfig(vocab_size=19, num_labels=num_labels, **sizes))\n",
    )
    model = {"factory": "page_models:bert", "trust_code": True}
    bench.config(model=model, tokenizer=str(bench.model))
    outcome = bench.run("plan", "config.yaml", "--html", "plan.html")
    assert outcome.status == 0, outcome.err
    assert "<title>page_models:bert: what trains</title>" in (bench.folder / "plan.html").read_text(encoding="utf-8")


def test_the_page_takes_the_place_of_nothing_else(bench: Any) -> None:
    bench.config()
    bench.write("mine.html", "<p>mine</p>")
    (bench.folder / "folder").mkdir()
    (bench.folder / "link.html").symlink_to("gone.html")
    assert "is no page of" in bench.refused("plan", "config.yaml", "--html", "link.html").error
    assert "is no page of" in bench.refused("plan", "config.yaml", "--html", "mine.html").error
    assert "which is a folder" in bench.refused("plan", "config.yaml", "--html", "folder").error
    missing = bench.refused("plan", "config.yaml", "--html", "missing/plan.html")
    assert "a folder that exists" in missing.part("possible")


def test_devices_forecast_bytes_on_each(bench: Any) -> None:
    bench.config()
    screen = planned(bench, "config.yaml", "--devices", "dp_shard=2, tp=2,dp_replicate=3")
    assert "on each of 12 devices (DDP 3, FSDP2 2, TP 2)" in screen
    record = json.loads(planned(bench, "config.yaml", "--json", "--devices", "dp_shard=2"))
    assert record["devices"]["dp_shard_size"] == 2
    assert record["memory"]["weights_bytes"] > record["devices"]["weights_bytes"] > 0
    assert record["memory"]["adapters_bytes"] == 4 * (2 * 2 * 16 * 2)
    alone = planned(bench, "config.yaml", "--devices", "dp_shard=1").splitlines()
    assert any(line.startswith("device ") for line in alone)


@pytest.mark.parametrize(
    "value", ["", "8", "dp=8", "tp=0", "tp=-1", "tp=2.0", "tp=2,tp=4", "tp=²", "tp=two", "tp=" + "9" * 5000]
)
def test_devices_that_cannot_be_read_are_refused(bench: Any, value: str) -> None:
    bench.config()
    outcome = bench.refused("plan", "config.yaml", "--devices", value)
    assert "dp_replicate (DDP), dp_shard (FSDP2) and tp" in outcome.part("possible")
    assert "--devices" in outcome.part("where")


@pytest.mark.parametrize("option", ["--json", "--html x.html", "--diff config.yaml", "--devices tp=2"])
def test_a_config_that_cannot_be_read_ends_every_form_of_the_plan(bench: Any, option: str) -> None:
    bench.config()
    bench.config("wrong.yaml", peft={"rank": 0})
    assert "wrong.yaml, line" in bench.refused("plan", "wrong.yaml", *option.split()).part("where")


def test_data_shows_examples_as_the_model_sees_them(bench: Any) -> None:
    bench.config()
    shown = planned(bench, "config.yaml", "--data", "2")
    assert "film" in shown
    assert shown.count("[CLS]") == 2
    assert "pos" in shown or "neg" in shown
    assert planned(bench, "config.yaml", "--data", "500").count("[CLS]") == 20


def test_overrides_change_the_plan(bench: Any) -> None:
    bench.config()
    screen = planned(bench, "config.yaml", "peft.rank=4", "training.max_steps=7", 'peft.target_modules=["value"]')
    assert "LoRA r4" in screen
    assert "7 = 7 (max_steps)" in screen
    assert "value" in screen


def test_a_text_longer_than_the_window_is_cut_counted_and_said_once(bench: Any) -> None:
    rows = bench.texts(24)
    rows[3]["text"] = "good film " * 20
    rows[4]["text"] = "awful film " * 20
    bench.rows("long.jsonl", rows)
    bench.config(data={"train": "long.jsonl"})
    assert "cut" not in planned(bench, "config.yaml").replace("lengths and cuts", "")  # a plan need not tokenize
    assert "2 cut at 16 tokens" in planned(bench, "config.yaml", "--data", "1")
    trained = bench.run("train", "config.yaml")
    assert trained.status == 0
    assert (trained.out + trained.err).count("cut at 16 tokens") == 1


def test_freezing_alone(bench: Any) -> None:
    bench.config(peft=None, freeze_config={"freeze_modules": ["bert"], "unfreeze_modules": [{"layers": "-1:"}]})
    screen = planned(bench, "config.yaml")
    assert "line" in screen
    assert "peft no (no adapter)" in screen


def test_a_reader_that_goes_away_is_no_error(bench: Any, repository: Path) -> None:
    """As in `frostline plan c.yaml | head -1`: no complaint, and the status of a process that SIGPIPE ends."""
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys, frostline.cli; sys.stdin.read(); frostline.cli.main()", "schema"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()  # only now does it begin to write
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 141


@pytest.mark.filterwarnings("ignore::frostline.errors.FrostlineDeprecationWarning")
def test_legacy_keys_are_noted_with_what_to_write_instead(bench: Any) -> None:
    bench.config(freeze_config={"freeze_audio_tower": True})
    screen = " ".join(planned(bench, "config.yaml").split())
    assert "matches nothing here: no module is named audio|speech|sound" in screen
    assert (
        "deprecated: freeze_audio_tower: true; the same with selectors: freeze_config: {freeze_modules: []}" in screen
    )
    bench.config(freeze_config={})
    assert "deprecated" not in planned(bench, "config.yaml")  # nothing is called so, and nobody wrote it


def test_no_language_model_to_freeze_is_refused_with_its_line(bench: Any) -> None:
    bench.config(freeze_config={"freeze_language_model": True})
    outcome = bench.refused("plan", "config.yaml")
    assert "freeze_language_model: true freezes nothing" in outcome.error
    assert ": freeze_config.freeze_language_model" in outcome.part("where")
    assert "line " in outcome.part("where")
    assert outcome.part("do") == "write freeze_modules: [{path: bert}] instead"


def test_json_has_every_note_of_the_screen_once(bench: Any) -> None:
    rows = bench.texts(24)
    bench.rows("twice.jsonl", [*rows, {**rows[0], "label": "neg"}])
    bench.config(data={"train": "twice.jsonl"})
    shown = [line[9:] for line in planned(bench, "config.yaml").splitlines() if line.startswith("note ")]
    assert shown
    record = json.loads(planned(bench, "config.yaml", "--json"))
    assert record["notes"] == shown
    assert not any(key.startswith("note") for key in record["facts"])


def test_a_page_comes_beside_the_screen(bench: Any) -> None:
    bench.config()
    outcome = bench.run("plan", "config.yaml", "--html", "plan.html")
    assert outcome.out == planned(bench, "config.yaml")
    assert "the page is plan.html\n" in outcome.err


def test_a_comparison_for_scripts_names_the_phase_that_differs(bench: Any) -> None:
    block = {"freeze_modules": ["bert"]}
    phases = [{"at": {"step": 1}, "unfreeze_modules": [{"layers": "1"}], "lr": 1e-4}]
    bench.config("one.yaml", peft=None, freeze_config=block)
    bench.config("two.yaml", peft=None, freeze_config={**block, "phases": phases})
    assert planned(bench, "one.yaml", "--diff", "two.yaml").splitlines() == [
        "+ phase 1: at step 1, lr 0.0001",
        "+ phase 1: bert.encoder.layer.1 (16 parameters) starts to train",
    ]
    record = json.loads(planned(bench, "one.yaml", "--diff", "two.yaml", "--json"))
    assert [(line["phase"], line["num_parameters"]) for line in record["differences"]] == [(1, 0), (1, 16)]
