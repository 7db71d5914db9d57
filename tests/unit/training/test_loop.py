"""The loop as a whole: its oracle is equality between forms of the same run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from frostline.checkpoint import RunFolder, load_checkpoint
from frostline.errors import CheckpointError, ConfigError, PlanMismatchError, TrainingError
from frostline.training import read_metrics
from frostline.tree import canonical_named_parameters


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {path: param.detach().clone() for path, param in canonical_named_parameters(model)}


def assert_same_bits(left: nn.Module, right: nn.Module) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    different = [path for path in ours if not ours[path].equal(theirs[path])]
    assert not different


def losses(path: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_metrics(path / "metrics.jsonl") if "loss" in record]


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_1x8_2x4_and_8x1_give_the_same_weights_with_unequal_lengths(toy: Any, micro: int):
    whole = toy.train(model=toy.model(dtype=torch.float64), training={"micro_batch_size": 8})
    split = toy.train(model=toy.model(dtype=torch.float64), training={"micro_batch_size": micro})
    ours, theirs = weights(split.model), weights(whole.model)
    for path, value in theirs.items():
        torch.testing.assert_close(ours[path], value, rtol=0, atol=1e-12)
    assert not ours["head.weight"].equal(weights(toy.model(dtype=torch.float64))["head.weight"])


def test_one_step_equals_a_plain_loop_over_the_global_token_mean(toy: Any):
    outcome = toy.train(
        training={"max_steps": 1, "micro_batch_size": 2, "batch_size": 8, "max_grad_norm": None},
        num_train=8,
        optimizer={"name": "sgd", "lr": 0.1},
    )
    model, task = toy.model(), toy.task()
    batch = task.collate(toy.examples(8))
    logits = model(batch["input_ids"])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    expected = model.head.weight - 0.1 * model.head.weight.grad
    torch.testing.assert_close(weights(outcome.model)["head.weight"], expected)
    assert losses(outcome.path) == [(1, pytest.approx(loss.item(), rel=1e-5))]


def test_gradients_are_clipped_at_their_joint_norm(toy: Any):
    sgd = {"name": "sgd", "lr": 1.0}
    outcome = toy.train(training={"max_steps": 1, "max_grad_norm": 0.01}, optimizer=sgd)
    before, after = weights(toy.model()), weights(outcome.model)
    moved = torch.sqrt(sum((after[path] - before[path]).square().sum() for path in before))  # type: ignore[arg-type]
    torch.testing.assert_close(moved, torch.tensor(0.01), rtol=1e-3, atol=0)
    (record,) = [record for record in read_metrics(outcome.path / "metrics.jsonl") if "loss" in record]
    assert record["grad_norm"] > 0.01


def test_the_loss_falls_and_the_frozen_part_stays(toy: Any):
    outcome = toy.train(
        training={"epochs": 20}, optimizer={"weight_decay": 0.1}, checkpoint={"every": "end"}, num_validation=0
    )
    curve = [loss for _, loss in losses(outcome.path)]
    assert curve[-1] < curve[0] / 2
    assert weights(outcome.model)["embed.weight"].equal(weights(toy.model())["embed.weight"])
    assert outcome.result.proof == "frozen part: 1 tensors bit-identical to what was loaded"
    assert outcome.result.remarks == ()
    assert outcome.result.steps == 60
    assert outcome.result.epochs == 20


def test_case_128_a_run_resumed_from_any_checkpoint_equals_the_uninterrupted_one(toy: Any):
    settings: dict[str, Any] = {
        "training": {"epochs": 3, "micro_batch_size": 4},
        "checkpoint": {"every": 2},
        "evaluation": {"every": 4},
        "schedule": {"name": "cosine", "warmup": 2},
    }
    whole = toy.train(model=toy.model(dropout=0.3), name="whole", **settings)
    checkpoints = sorted((whole.path / "checkpoints").glob("step-*"))
    assert [path.name for path in checkpoints] == [f"step-{step:06}" for step in (2, 4, 6, 8, 9)]
    expected = list(read_metrics(whole.path / "metrics.jsonl"))
    for checkpoint in checkpoints:
        torch.manual_seed(99)  # a resumed process has drawn other numbers before
        again = toy.root / "again"
        shutil.copytree(whole.path, again, symlinks=True)
        resumed = toy.train(
            model=toy.model(dropout=0.3),
            name="again",
            mode="resume",
            resume_from=again / "checkpoints" / checkpoint.name,
            **settings,
        )
        assert_same_bits(resumed.model, whole.model)
        found = list(read_metrics(again / "metrics.jsonl"))
        for record in expected + found:
            record.pop("tokens_per_second", None)
        assert found == expected
        assert resumed.result.last_metrics == whole.result.last_metrics
        assert resumed.result.best_value == whole.result.best_value
        assert resumed.result.best_step == whole.result.best_step
        shutil.rmtree(again)


def test_two_runs_of_one_config_are_equal_and_another_seed_is_not(toy: Any):
    first = toy.train(model=toy.model(dropout=0.3))
    second = toy.train(model=toy.model(dropout=0.3))
    other = toy.train(model=toy.model(dropout=0.3), training={"seed": 1})
    assert_same_bits(first.model, second.model)
    assert not weights(first.model)["head.weight"].equal(weights(other.model)["head.weight"])


@pytest.mark.parametrize("every", [1, "epoch", "never"])
def test_evaluation_does_not_disturb_the_training(toy: Any, every: Any):
    evaluated = toy.train(model=toy.model(dropout=0.3), evaluation={"every": every})
    blind = toy.train(model=toy.model(dropout=0.3), num_validation=0)
    assert_same_bits(evaluated.model, blind.model)
    assert evaluated.model.training
    assert bool(evaluated.result.last_metrics) == (every != "never")
    assert blind.result.best_metric is None


@pytest.mark.parametrize(("call", "kept"), [(3, 2), (5, 4)])
def test_a_run_whose_frozen_part_moved_leaves_no_checkpoint_of_it(toy: Any, call: int, kept: int):
    task = toy.task(tamper_call=call)
    settings: dict[str, Any] = {"checkpoint": {"every": 2}, "evaluation": {"every": "never"}}
    with pytest.raises(PlanMismatchError, match=r"1 frozen tensors changed during the run: embed\.weight"):
        toy.train(task=task, name="run", **settings)
    latest = RunFolder.read(toy.root / "run").latest()
    assert latest is not None
    assert latest.name == f"step-{kept:06}", "nothing that was trained beside the moved weight"
    resumed = toy.train(name="run", mode="resume", resume_from=latest, **settings)
    assert_same_bits(resumed.model, toy.train(**settings).model)


def test_a_resume_beside_another_frozen_part_is_refused(toy: Any):
    first = toy.train(name="run", training={"max_steps": 2})
    other = toy.model()
    with torch.no_grad():
        other.embed.weight[0, 0] += 1
    with pytest.raises(CheckpointError, match="frozen part is not bit for bit the one that the checkpoint"):
        toy.train(
            model=other, name="run", mode="resume", resume_from=first.result.checkpoint, training={"max_steps": 4}
        )


def test_a_step_of_the_set_up_that_replaces_a_frozen_parameter_leaves_it_frozen(toy: Any, monkeypatch: Any):
    def replace(model: nn.Module, plan: Any, settings: Any, origins: Any) -> None:
        model.embed.weight = nn.Parameter(model.embed.weight.detach().clone())  # trains, as a fresh parameter does

    monkeypatch.setattr("frostline.training.loop.convert_trained", replace)
    outcome = toy.train(training={"max_steps": 1})
    assert not outcome.model.embed.weight.requires_grad
    assert weights(outcome.model)["embed.weight"].equal(weights(toy.model())["embed.weight"])


def test_nan_loss_stops_before_the_step_and_names_step_and_last_good_checkpoint(toy: Any):
    stopped = toy.model()
    expected = r"loss is nan at step 4(.|\n)*last good checkpoint is .*step-000004"
    with pytest.raises(TrainingError, match=expected) as caught:
        toy.train(model=stopped, task=toy.task(poison_call=4), name="run", checkpoint={"every": 1})
    assert "--resume" in str(caught.value)
    latest = RunFolder.read(toy.root / "run").latest()
    assert latest is not None
    assert latest.name == "step-000004"
    restored = toy.model()
    load_checkpoint(latest, model=restored, plan=toy.plan(restored), base=toy.base)
    assert_same_bits(stopped, restored)  # the poisoned step changed nothing
    resumed = toy.train(name="run", mode="resume", resume_from=latest, checkpoint={"every": 1})
    whole = toy.train(checkpoint={"every": 1})
    assert_same_bits(resumed.model, whole.model)


def test_nan_in_the_first_step_says_that_there_is_no_checkpoint(toy: Any):
    model = toy.model()
    with pytest.raises(TrainingError, match=r"loss is nan at step 0(.|\n)*no checkpoint was written"):
        toy.train(model=model, task=toy.task(poison_call=0))
    assert_same_bits(model, toy.model())


def test_a_gradient_that_is_not_finite_stops_too(toy: Any):
    model = toy.model()

    def explode(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf")

    plan = toy.plan(model)
    model.head.weight.register_hook(explode)
    with pytest.raises(TrainingError, match=r"gradient norm is inf \(head.weight\) at step 0"):
        toy.train(model=model, plan=plan)
    assert_same_bits(model, toy.model())


def test_the_best_checkpoint_is_saved_when_it_is_measured(toy: Any):
    task = toy.task(scores=[0.2, 0.9, 0.5, 0.8], default_metric=("score", "max"))
    outcome = toy.train(task=task, training={"max_steps": 4}, evaluation={"every": 1}, checkpoint={"every": "end"})
    assert (outcome.result.best_metric, outcome.result.best_value, outcome.result.best_step) == ("score", 0.9, 2)
    best = RunFolder.read(outcome.path).best()
    assert best is not None
    assert best.name == "step-000002"
    assert [line.endswith("best so far") for line in outcome.output.splitlines() if line.startswith("evaluation")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_config_names_the_best_metric(toy: Any):
    task = toy.task(scores=[0.2, 0.9, 0.5])
    evaluation = {"every": 1, "best": {"metric": "score", "mode": "min"}}
    outcome = toy.train(task=task, training={"max_steps": 3}, evaluation=evaluation)
    assert outcome.result.best_step == 1


def test_an_unknown_best_metric_is_refused_with_the_real_ones_before_the_first_step(toy: Any):
    task = toy.task()
    with pytest.raises(
        ConfigError, match=r"no metric is called 'los'(.|\n)*possible: did you mean `loss`\? loss, score"
    ):
        toy.train(task=task, evaluation={"at_start": False, "best": {"metric": "los", "mode": "max"}})
    assert task.num_calls == 0


def test_the_base_is_scored_before_the_first_step_and_never_counts_as_best(toy: Any):
    task = toy.task(scores=[0.9, 0.5, 0.6], default_metric=("score", "max"))
    outcome = toy.train(task=task, evaluation={"at_start": True})
    records = [json.loads(line) for line in (outcome.path / "metrics.jsonl").read_text().splitlines()]
    assert [(r["step"], r["validation_score"]) for r in records if "validation_score" in r] == [
        (0, 0.9),
        (3, 0.5),
        (6, 0.6),
    ]
    assert (outcome.result.best_value, outcome.result.best_step) == (0.6, 6)


def test_early_stopping_ends_the_run_and_a_resume_does_nothing_more(toy: Any):
    settings: dict[str, Any] = {
        "training": {"max_steps": 20},
        "evaluation": {"every": 1, "early_stopping": {"patience": 2}},
        "checkpoint": {"every": "end"},
    }
    task = toy.task(scores=[0.5, 0.6, 0.5, 0.4, 0.9], default_metric=("score", "max"))
    stopped = toy.train(task=task, name="run", **settings)
    assert stopped.result.stopped_early
    assert stopped.result.steps == 4
    assert "stopped early at step 4: score 0.6 at step 2 was not improved by 2 evaluations" in stopped.output
    latest = RunFolder.read(stopped.path).latest()
    assert latest is not None
    again = toy.train(
        task=toy.task(default_metric=("score", "max")), name="run", mode="resume", resume_from=latest, **settings
    )
    assert again.result.steps == 4
    assert again.result.stopped_early
    assert_same_bits(again.model, stopped.model)


def test_resuming_over_other_data_is_refused(toy: Any):
    first = toy.train(name="run", training={"max_steps": 2})
    with pytest.raises(CheckpointError, match="num_examples 21, this run has 20"):
        toy.train(
            name="run", mode="resume", resume_from=first.result.checkpoint, num_train=20, training={"max_steps": 4}
        )


def test_a_partial_last_batch_is_trained_and_the_epoch_counts_examples(toy: Any):
    outcome = toy.train(num_train=9, training={"batch_size": 8, "epochs": 2})
    assert outcome.result.steps == 4
    assert [record["epoch"] for record in read_metrics(outcome.path / "metrics.jsonl") if "loss" in record] == [
        0.5,
        1.0,
        1.5,
        2.0,
    ]


def test_bf16_and_gradient_checkpointing_train(toy: Any):
    plain = toy.train(training={"max_steps": 3})
    recomputed = toy.train(training={"max_steps": 3, "gradient_checkpointing": "all"})
    assert_same_bits(plain.model, recomputed.model)
    half = toy.train(training={"max_steps": 3, "precision": "bf16"})
    assert weights(half.model)["head.weight"].dtype == torch.float32
    torch.testing.assert_close(losses(half.path)[0][1], losses(plain.path)[0][1], rtol=0.02, atol=0)


def test_metrics_hold_each_step_and_each_evaluation(toy: Any):
    outcome = toy.train()
    lines = (outcome.path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert set(records[0]) == {"step", "epoch", "loss", "lr", "grad_norm", "tokens_per_second"}
    assert set(records[3]) == {"step", "epoch", "validation_loss", "is_best"}
    assert records[0]["lr"] == 0.01
    assert outcome.result.report == "a table"


def test_plain_output_has_one_line_for_each_evaluation(toy: Any):
    outcome = toy.train()
    lines = outcome.output.splitlines()
    assert len([line for line in lines if line.startswith("evaluation at step")]) == 2
    assert len([line for line in lines if line.startswith("step ")]) == 6


def test_a_bar_on_a_terminal(toy: Any):
    outcome = toy.train(terminal=True)
    assert "6/6" in outcome.output
    assert "tokens/s" in outcome.output


def test_the_checkpoint_cadence_and_keep(toy: Any):
    outcome = toy.train(training={"max_steps": 7}, num_validation=0, checkpoint={"every": 2, "keep": 2})
    assert [path.name for path in RunFolder.read(outcome.path).checkpoints()] == ["step-000006", "step-000007"]
