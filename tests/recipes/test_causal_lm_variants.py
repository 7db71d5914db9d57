"""`causal_lm` from config to reloaded checkpoint, for every format. The oracle is transformers' own loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from frostline.data import Rows
from frostline.recipes.finished import evaluate_run, predict_run

Make = Callable[..., dict[str, Any]]


def words(number: int, length: int) -> str:
    return " ".join(f"w{(number * 3 + position) % 20}" for position in range(1 + (number + length) % 9 + number // 20))


MESSAGES = [
    {
        "messages": [
            {"role": "user", "content": f"hello {words(n, 1)}"},
            {"role": "assistant", "content": words(n, 4)},
            {"role": "user", "content": f"bye {n % 2}"},
            {"role": "assistant", "content": f"thanks {words(n, 2)}"},
        ]
    }
    for n in range(20)
]
COMPLETIONS = [{"prompt": f"hello {words(n, 3)} how", "completion": words(n, 5)} for n in range(20)]
TEXTS = [{"text": f"good {words(n, 0)} {words(n, 6)}"} for n in range(20)]

VARIANTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], float]] = {
    "messages": (MESSAGES, {}, 0.0),
    "messages, last turn": (MESSAGES, {"train_on": "last"}, 0.0),
    "messages, all tokens": (MESSAGES, {"train_on": "all"}, 0.0),
    "messages, system": (MESSAGES, {"system": "you are good"}, 0.0),
    "prompt and completion": (COMPLETIONS, {}, 0.0),
    "text": (TEXTS, {}, 0.0),
    "label smoothing": (MESSAGES, {}, 0.1),
}


def expected_loss(run: Any, smoothing: float) -> float:
    """The first loss by transformers, padded on the right by hand, labels of all positions."""
    assembly = run.planned.assembly
    examples = assembly.data.train.examples
    model = assembly.load_model().model.eval()
    length = max(len(example["input_ids"]) for example in examples)

    def padded(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([[*example[name], *[filler] * (length - len(example[name]))] for example in examples])

    mask = torch.tensor([[int(i < len(example["input_ids"])) for i in range(length)] for example in examples])
    labels = padded("labels", -100)
    with torch.no_grad():
        output = model(input_ids=padded("input_ids", 0), attention_mask=mask, labels=labels)
    if not smoothing:
        return float(output.loss)
    shifted = output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return float(F.cross_entropy(*shifted, ignore_index=-100, label_smoothing=smoothing))


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, converse: Make, launch: Any, resumes_bit_for_bit: Any) -> None:
    rows, data, smoothing = VARIANTS[name]
    config = converse(
        rows,
        data={"max_examples": 16, **data},
        training={"batch_size": 16, "max_steps": 6, "label_smoothing": smoothing},
        optimizer={"lr": 5e-2},
    )
    run = launch(config)

    assert run.losses[0] == pytest.approx(expected_loss(run, smoothing), rel=2e-5)
    assert run.losses[-1] < run.losses[0]
    assert {"loss", "perplexity", "token_accuracy"} <= set(run.result.last_metrics)
    assert "bit-identical" in run.result.proof
    (score,) = evaluate_run(run.open())
    assert score.metrics == pytest.approx(run.result.last_metrics, rel=1e-5)
    answers = predict_run(run.open(), Rows.from_dicts([{"prompt": "hello w1"}]), max_new_tokens=3)
    assert isinstance(answers[0]["generated"], str)
    resumes_bit_for_bit(run, config, step=2)


def test_end_of_turn_is_trained_and_the_question_is_not(converse: Make, launch: Any) -> None:
    run = launch(converse(MESSAGES))
    tokenizer = run.planned.assembly.tokenizer
    for example in run.planned.assembly.data.train.examples:
        trained = tokenizer.decode([label for label in example["labels"] if label != -100])
        assert trained.count("</s>") == 2
        assert "hello" not in trained
        assert "bye" not in trained
