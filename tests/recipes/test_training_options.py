"""What `training`, `optimizer`, `schedule`, `evaluation` and `checkpoint` promise, through the real recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from frostline.config.models.training import OptimizerName
from frostline.data.encode import DeferredData
from frostline.data.rows import Rows
from frostline.recipes.config_checks import read_config
from frostline.recipes.exporting import export_run
from frostline.recipes.finished import evaluate_run, predict_run
from frostline.recipes.runs import plan_run, shorten
from frostline.training.schedule import SHAPES

from .conftest import classification_rows

Make = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_every_optimizer_learns_and_resumes(
    optimizer: str, classify: Make, launch: Any, resumes_bit_for_bit: Any
) -> None:
    momentum = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {}
    config = classify(
        optimizer={"name": optimizer, "lr": 1e-2, "weight_decay": 0.01, **momentum},
        training={"max_steps": 2},
        checkpoint={"every": 1},
        evaluation={"every": "never"},
    )
    run = launch(config)
    resumed = resumes_bit_for_bit(run, config, step=1)
    start = run.planned.assembly.load_model().model.state_dict()
    moved = [
        name
        for name, tensor in run.tensors.items()
        if "classifier" in name and not torch.equal(tensor, start[name.removeprefix("base_model.model.")])
    ]
    assert len(moved) == 2
    assert resumed.result.steps == 2


@pytest.mark.parametrize("schedule", SHAPES)
def test_every_schedule_logs_its_rates_and_resumes(
    schedule: str, classify: Make, launch: Any, resumes_bit_for_bit: Any
) -> None:
    floor = {} if schedule == "constant" else {"min_lr": 1e-3}
    config = classify(schedule={"name": schedule, "warmup": 1, **floor}, evaluation={"every": "never"})
    run = launch(config)
    rates = [record["lr"] for record in run.metrics if "lr" in record]
    # Half of the peak in the one step of warm-up, then three steps from the peak.
    after = {"constant": [1, 1, 1], "linear": [1, 0.7, 0.4], "cosine": [1, 0.775, 0.325]}[schedule]
    assert rates == pytest.approx([0.005, *[0.01 * factor for factor in after]])
    resumes_bit_for_bit(run, config, step=2)


def test_groups_by_selector_have_their_own_rate(classify: Make, launch: Any) -> None:
    def trained(factor: float, name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        config = classify(
            optimizer={
                "name": "sgd",
                "lr": 0.1,
                "groups": [{"select": "classifier", "lr": 0.5 * factor}, {"select": {"param": "*lora_B*"}, "lr": 0.02}],
            },
            schedule={"name": "constant"},
            training={"max_steps": 1, "max_grad_norm": None},
            evaluation={"every": "never"},
        )
        run = launch(config, name=name)
        return run.tensors, run.planned.assembly.load_model().model.state_dict()

    (once, start), (twice, _) = trained(1, "once"), trained(2, "twice")
    head = "base_model.model.classifier.weight"
    step = once[head] - start["classifier.weight"]
    assert step.abs().max() > 1e-4
    torch.testing.assert_close(twice[head] - start["classifier.weight"], 2 * step, rtol=1e-3, atol=1e-7)
    for name in once:
        if "classifier" not in name:
            assert torch.equal(once[name], twice[name]), name


def test_gradient_checkpointing_changes_memory_and_not_the_weights(
    converse: Make, launch: Any, resumes_bit_for_bit: Any
) -> None:
    plain = launch(converse(), name="plain")
    config = converse(training={"gradient_checkpointing": "all"})
    recomputed = launch(config, name="recomputed")
    assert recomputed.trained_bytes == plain.trained_bytes
    assert recomputed.losses == plain.losses
    resumes_bit_for_bit(recomputed, config, step=2)


def test_backward_stops_below_the_first_trained_block_also_with_gradient_checkpointing(
    converse: Make, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frostline.recipes.causal_lm_task import CausalLMTask

    reached: list[bool] = []
    original = CausalLMTask.loss_sum

    def watched(self: CausalLMTask, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        handle = model.model.layers[0].register_forward_hook(lambda *a: reached.append(a[-1].requires_grad))
        try:
            return original(self, model, batch)
        finally:
            handle.remove()

    monkeypatch.setattr(CausalLMTask, "loss_sum", watched)
    config = converse(
        peft=None,
        freeze_config={"freeze_modules": "model", "unfreeze_modules": {"layers": 1}},
        training={"gradient_checkpointing": "all", "max_steps": 1},
        evaluation={"every": "never"},
    )
    launch(config)
    assert reached == [False]


def test_gradient_checkpointing_keeps_dropout(classify: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    """The recomputed forward draws the same numbers, also after a resume."""
    config = classify(training={"gradient_checkpointing": "all"}, peft={"dropout": 0.2})
    run = launch(config)
    assert run.losses == pytest.approx(launch(classify(peft={"dropout": 0.2}), name="plain").losses, rel=1e-6)
    resumes_bit_for_bit(run, config, step=2)


def test_bf16_computes_in_bfloat16_and_trains_in_float32(converse: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    config = converse(training={"precision": "bf16", "max_steps": 6})
    run, exact = launch(config), launch(converse(training={"max_steps": 6}), name="fp32")
    assert {tensor.dtype for tensor in run.tensors.values()} == {torch.float32}
    assert run.losses != exact.losses
    assert run.losses == pytest.approx(exact.losses, rel=0.02)
    resumes_bit_for_bit(run, config, step=4)


def test_bfloat16_base_stays_bfloat16(converse: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    config = converse(training={"precision": "bf16"}, model={"dtype": "bfloat16"})
    config["model"] = {"name_or_path": converse()["model"], "dtype": "bfloat16"}
    run = launch(config)
    assert {param.dtype for name, param in run.model().named_parameters() if "lora" not in name} == {torch.bfloat16}
    assert {tensor.dtype for tensor in run.tensors.values()} == {torch.float32}
    resumes_bit_for_bit(run, config, step=2)


def test_a_bfloat16_base_that_trains_is_evaluated_predicted_and_exported_as_it_was_trained(
    classify: Make, launch: Any, bert_folder: Path, tmp_path: Path
) -> None:
    config = classify(
        peft=None,
        freeze_config={"freeze_modules": ["bert.embeddings"]},
        training={"precision": "bf16"},
    )
    config["model"] = {"name_or_path": str(bert_folder), "dtype": "bfloat16"}
    run = launch(config)
    finished, model = run.open(), run.model()
    held = dict(model.named_parameters())
    assert all(held[name].dtype == torch.float32 and held[name].equal(value) for name, value in run.tensors.items())
    (scores,) = evaluate_run(finished)
    assert scores.metrics == run.result.last_metrics
    rows = Rows.from_dicts([{"text": "good w1 w2"}, {"text": "bad w3"}], "here")
    task = finished.assemble(with_data=False).build_task()
    encoded = [{"input_ids": finished.assemble(with_data=False).tokenizer(row["text"])["input_ids"]} for row in rows]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = [task.logits(model, [example | {"labels": 0}], batch_size=1) for example in encoded]
    found = predict_run(finished, rows, batch_size=1)
    assert [row["probability"] for row in found] == [float(logits.softmax(-1).max()) for logits in expected]
    said: list[str] = []
    merged = export_run(finished, "merged", tmp_path / "merged", say=said.append)
    assert said == ["written in float32: the base is bfloat16, and its trained parameters are float32"]
    reloaded = AutoModelForSequenceClassification.from_pretrained(merged)
    assert reloaded.dtype == torch.float32
    exported = dict(reloaded.named_parameters())
    assert all(exported[name].equal(value) for name, value in run.tensors.items())


def test_an_adapter_merged_into_bfloat16_is_said_to_be_rounded(converse: Make, launch: Any, tmp_path: Path) -> None:
    config = converse(training={"precision": "bf16"})
    config["model"] = {"name_or_path": config["model"], "dtype": "bfloat16"}
    said: list[str] = []
    merged = export_run(launch(config).open(), "merged", tmp_path / "merged", say=said.append)
    assert said == ["written in bfloat16 as the base: each sum of a weight and its adapter is rounded to that"]
    assert AutoModelForCausalLM.from_pretrained(merged).dtype == torch.bfloat16


@pytest.mark.parametrize("recipe", ["classify", "converse"])
def test_an_evaluation_tokenizes_only_what_it_scores(recipe: str, request: Any, launch: Any, monkeypatch: Any) -> None:
    config = request.getfixturevalue(recipe)()
    run = launch(config)
    monkeypatch.setattr(DeferredData, "encoded", property(encoded := Encoded(DeferredData.encoded)))
    (scores,) = evaluate_run(run.open())
    assert encoded.num_examples == {scores.num_examples}


class Encoded:
    """Stands in for the property, and notes what it was asked for."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.num_examples: set[int] = set()

    def __call__(self, data: Any) -> Any:
        found = self.original.fget(data)
        self.num_examples.add(len(found))
        return found


def test_a_smoke_run_tokenizes_the_examples_of_two_steps_and_keeps_all_labels(classify: Make) -> None:
    config = classify(classification_rows(200), training={"max_steps": None, "epochs": 3})
    whole, short = (plan_run(loaded) for loaded in (read_config(config), shorten(read_config(config))))
    assert len(whole.assembly.data.train) > 100
    assert len(short.assembly.data.train) == 8
    assert short.assembly.data.num_read == 200
    assert short.assembly.labels == whole.assembly.labels
    asked = shorten(read_config(config, ["data.max_examples=5"]))
    assert len(plan_run(asked).assembly.data.train) == 5
    balanced = shorten(read_config(config, ["training.class_weights=balanced"]))
    assert plan_run(balanced).assembly.data.label_weights is not None
    assert len(plan_run(balanced).assembly.data.train) > 100


def test_early_stopping_keeps_the_best_and_a_resume_stays_stopped(
    classify: Make, launch: Any, resumes_bit_for_bit: Any
) -> None:
    """The loss falls and is asked to rise: the first evaluation stays the best, patience 2 ends the run at step 6."""
    config = classify(
        training={"max_steps": 20},
        optimizer={"lr": 1e-3},
        evaluation={"every": 2, "best": {"metric": "loss", "mode": "max"}, "early_stopping": {"patience": 2}},
        checkpoint={"every": 2, "keep": 1},
    )
    run = launch(config)
    result, checkpoints = run.result, run.folder / "checkpoints"
    assert (result.stopped_early, result.steps, result.best_step) == (True, 6, 2)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "latest", "step-000002", "step-000006"]
    assert (checkpoints / "best").resolve().name == "step-000002"
    assert (checkpoints / "latest").resolve().name == "step-000006"
    assert (run.folder / "adapter").resolve() == checkpoints / "step-000002" / "adapter"
    assert [record["step"] for record in run.metrics if record.get("is_best")] == [2]
    assert run.open("best").manifest.step == 2
    again = launch(config, mode="resume")
    assert (again.result.steps, again.trained_bytes) == (6, run.trained_bytes)
    resumes_bit_for_bit(run, config, step=2)


def test_a_run_without_validation_has_no_best(classify: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    config = classify(data={"validation": None})
    run = launch(config)
    assert run.result.best_metric is None
    assert not (run.folder / "checkpoints" / "best").exists()
    assert (run.folder / "adapter").resolve() == run.checkpoint / "adapter"
    resumes_bit_for_bit(run, config, step=2)


def test_epochs_end_with_the_smaller_batch(classify: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    """18 examples in batches of 4: five steps an epoch; two and a half epochs are 13 steps. The order is by epoch."""
    config = classify(
        training={"max_steps": None, "epochs": 2.5}, checkpoint={"every": "epoch"}, evaluation={"every": "never"}
    )
    run = launch(config)
    assert run.result.steps == 13
    assert [path.name for path in run.open().folder.checkpoints()] == ["step-000005", "step-000010", "step-000013"]
    resumes_bit_for_bit(run, config, step=5)


def test_the_picture_and_the_plan_lie_in_the_run_folder(classify: Make, launch: Any) -> None:
    run = launch(classify())
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.yaml", "plan.json", "metrics.jsonl", "curves.png", "tokenizer", "adapter", "checkpoints"} <= names
    assert Path(run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
