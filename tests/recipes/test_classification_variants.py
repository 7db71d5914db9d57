"""`sequence_classification` from config to reloaded checkpoint, in every variant. The oracle is transformers' loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from frostline.data import Rows
from frostline.recipes.finished import evaluate_run, predict_run

Make = Callable[..., dict[str, Any]]


def word(number: int) -> str:
    return f"w{number % 20} {'w1 ' * (number % 7)}w{number // 20}"


SINGLE = [{"text": f"good {word(n)}", "label": ["neg", "pos", "pos"][n % 3]} for n in range(24)]
SEVERAL = [{"text": word(n), "label": [["red"], ["red", "blue"], [], ["green"]][n % 4]} for n in range(24)]
NUMBERS = [{"text": word(n), "label": n / 8 - 1} for n in range(24)]
PAIRS = [{"text": word(n), "text_pair": word(n * 3 + 1), "label": str(n % 2)} for n in range(24)]

VARIANTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], set[str]]] = {
    "single label": (SINGLE, {}, {"loss", "accuracy", "macro_f1"}),
    "several labels": (SEVERAL, {}, {"loss"}),
    "regression": (NUMBERS, {}, {"loss", "mse", "mae", "pearson"}),
    "text pairs": (PAIRS, {}, {"loss", "accuracy"}),
    "balanced class weights": (SINGLE, {"class_weights": "balanced"}, {"loss", "accuracy"}),
    "given class weights": (SINGLE, {"class_weights": {"pos": 0.25, "neg": 2.0}}, {"loss", "accuracy"}),
    "label smoothing": (SINGLE, {"label_smoothing": 0.2}, {"loss", "accuracy"}),
    "weights and smoothing": (SINGLE, {"label_smoothing": 0.2, "class_weights": "balanced"}, {"loss", "accuracy"}),
}


def expected_loss(run: Any, training: dict[str, Any]) -> float:
    """Loss of the first step by transformers, or by torch where transformers has no such setting; no loop of ours."""
    assembly = run.planned.assembly
    examples = assembly.data.train.examples
    model = assembly.load_model().model.eval()
    length = max(len(example["input_ids"]) for example in examples)
    batch = {
        name: torch.tensor([[*example[name], *[0] * (length - len(example[name]))] for example in examples])
        for name in ("input_ids", "token_type_ids")
    }
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    labels = torch.tensor([example["labels"] for example in examples])
    with torch.no_grad():
        if not training:
            return float(model(**batch, labels=labels).loss)
        logits = model(**batch).logits
    asked, weight = training.get("class_weights"), None
    if isinstance(asked, dict):
        weight = torch.tensor([asked["neg"], asked["pos"]])
    elif asked == "balanced":
        weight = len(labels) / 2 / torch.bincount(labels, minlength=2)
    return float(F.cross_entropy(logits, labels, weight=weight, label_smoothing=training.get("label_smoothing", 0.0)))


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, classify: Make, still_bert_folder: Path, launch: Any, resumes_bit_for_bit: Any) -> None:
    rows, training, metrics = VARIANTS[name]
    config = classify(
        rows,
        model=str(still_bert_folder),
        training={"batch_size": 16, "max_steps": 6, **training},
        optimizer={"lr": 5e-2},
        data={"max_examples": 16},
    )
    run = launch(config)

    assert run.losses[0] == pytest.approx(expected_loss(run, training), rel=2e-5)
    assert run.losses[-1] < run.losses[0]
    assert metrics <= set(run.result.last_metrics)
    assert "bit-identical" in run.result.proof
    (score,) = evaluate_run(run.open())
    assert score.metrics == pytest.approx(run.result.last_metrics, rel=1e-5)
    answers = predict_run(run.open(), Rows.from_dicts([{k: v for k, v in row.items() if k != "label"} for row in rows]))
    assert len(answers) == len(rows)
    resumes_bit_for_bit(run, config, step=2)


def test_label_names_are_saved_with_the_model(classify: Make, launch: Any) -> None:
    model = launch(classify(SINGLE)).model()
    assert model.config.id2label == {0: "neg", 1: "pos"}
    assert model.config.problem_type == "single_label_classification"
