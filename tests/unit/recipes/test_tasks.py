"""Losses against those that transformers computes itself; forms of one loss against one another."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import BertForSequenceClassification, LlamaForCausalLM

from frostline.data import LabelMap
from frostline.recipes.causal_lm_task import CausalLMTask, label_logits
from frostline.recipes.classification_task import ClassificationTask

CPU = torch.device("cpu")
SINGLE = LabelMap(("neg", "ok", "pos"), "single_label")
TEXTS = [[4, 7, 8, 5], [4, 9, 5], [4, 10, 11, 12, 13, 5], [4, 14, 5], [4, 15, 16, 5]]


def classifier(folder: Path, problem: str, num_labels: int) -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification.from_pretrained(
        folder, num_labels=num_labels, problem_type=problem, dtype=torch.float64
    ).eval()


def with_labels(labels: list[Any]) -> list[dict[str, Any]]:
    return [{"input_ids": ids, "labels": label} for ids, label in zip(TEXTS, labels, strict=True)]


@pytest.mark.parametrize(
    ("labels", "problem", "values"),
    [
        (SINGLE, "single_label_classification", [0, 1, 2, 1, 0]),
        (
            LabelMap(("x", "y", "z"), "multi_label"),
            "multi_label_classification",
            [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]],
        ),
        (LabelMap(("value",), "regression"), "regression", [0.5, -1.0, 2.0, 0.0, 1.5]),
    ],
)
def test_mean_loss_equals_that_of_transformers(
    bert_folder: Path, labels: LabelMap, problem: str, values: list[Any]
) -> None:
    model = classifier(bert_folder, problem, labels.num_labels)
    task = ClassificationTask(labels, pad_token_id=0)
    batch = task.collate(with_labels(values))
    theirs = {
        **batch,
        "labels": batch["labels"].double() if problem != "single_label_classification" else batch["labels"],
    }
    with torch.no_grad():
        expected = model(**theirs).loss
        ours = task.loss_sum(model, batch) / task.num_targets(batch)
        evaluated = task.evaluate(model, with_labels(values), batch_size=2, device=CPU, autocast=nullcontext)
    torch.testing.assert_close(ours, expected)
    assert evaluated["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert task.default_metric[0] in evaluated
    assert {name for name, value in evaluated.items() if isinstance(value, float)} <= set(task.metric_names)
    assert set(task.metric_names) - set(evaluated) <= {"pearson"}


def test_class_weights_and_smoothing_equal_torch(bert_folder: Path) -> None:
    model = classifier(bert_folder, "single_label_classification", 3)
    weights = [0.5, 2.0, 1.0]
    task = ClassificationTask(SINGLE, 0, weights, label_smoothing=0.1)
    batch = task.collate(with_labels([0, 1, 2, 1, 0]))
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        ours = task.loss_sum(model, batch) / task.num_targets(batch)
    expected = F.cross_entropy(logits, batch["labels"], torch.tensor(weights).double(), label_smoothing=0.1)
    torch.testing.assert_close(ours, expected)


def test_classification_sum_does_not_depend_on_micro_batches(bert_folder: Path) -> None:
    model = classifier(bert_folder, "single_label_classification", 3)
    task = ClassificationTask(SINGLE, 0, [0.5, 2.0, 1.0])
    examples = with_labels([0, 1, 2, 1, 0])
    whole, parts = task.collate(examples), [task.collate(examples[:2]), task.collate(examples[2:])]
    with torch.no_grad():
        torch.testing.assert_close(
            task.loss_sum(model, whole), torch.stack([task.loss_sum(model, part) for part in parts]).sum()
        )
    assert task.num_targets(whole) == sum(task.num_targets(part) for part in parts)


def test_logits_come_in_the_order_of_the_examples(bert_folder: Path) -> None:
    model = classifier(bert_folder, "single_label_classification", 3)
    task = ClassificationTask(SINGLE, 0)
    examples = with_labels([0, 1, 2, 1, 0])
    with torch.no_grad():
        together = task.logits(model, examples, batch_size=2)
        alone = torch.cat([task.logits(model, [example], batch_size=1) for example in examples])
    torch.testing.assert_close(together, alone)


CHATS = [
    {"input_ids": [2, 8, 9, 2, 10, 11, 3], "labels": [-100, -100, -100, -100, 10, 11, 3]},
    {"input_ids": [2, 12, 3], "labels": [-100, 12, 3]},
    {"input_ids": [2, 13, 14, 15, 3], "labels": [-100, 13, -100, 15, -100]},
]


def language_model(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def full_batch() -> dict[str, torch.Tensor]:
    longest = max(len(chat["input_ids"]) for chat in CHATS)
    pad = [longest - len(chat["input_ids"]) for chat in CHATS]
    return {
        "input_ids": torch.tensor([c["input_ids"] + [0] * n for c, n in zip(CHATS, pad, strict=True)]),
        "attention_mask": torch.tensor([[1] * len(c["input_ids"]) + [0] * n for c, n in zip(CHATS, pad, strict=True)]),
        "labels": torch.tensor([c["labels"] + [-100] * n for c, n in zip(CHATS, pad, strict=True)]),
    }


def test_causal_loss_and_gradients_equal_those_of_transformers(llama_folder: Path) -> None:
    task = CausalLMTask(pad_token_id=0)
    ours, theirs = language_model(llama_folder), language_model(llama_folder)
    batch = task.collate(CHATS)
    assert task.num_targets(batch) == 7
    assert task.num_units(batch) == 15
    loss = task.loss_sum(ours, batch) / task.num_targets(batch)
    expected = theirs(**full_batch()).loss
    torch.testing.assert_close(loss, expected, check_dtype=False, rtol=1e-6, atol=1e-6)
    loss.backward()
    expected.backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name, rtol=1e-5, atol=1e-7)


def test_output_head_sees_only_label_positions(llama_folder: Path) -> None:
    model, task = language_model(llama_folder), CausalLMTask(0)
    seen: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    batch = task.collate(CHATS)
    logits = label_logits(model, batch)
    assert seen == [torch.Size([1, 7, model.config.vocab_size])]
    assert logits.shape == (7, model.config.vocab_size)
    assert not model.lm_head._forward_pre_hooks  # the hook is gone


def test_head_that_cannot_be_found_gives_the_same_logits(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = language_model(llama_folder), CausalLMTask(0).collate(CHATS)
    with torch.no_grad():
        narrowed = label_logits(model, batch)
        monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
        torch.testing.assert_close(label_logits(model, batch), narrowed)


def test_hook_goes_when_the_forward_fails(llama_folder: Path) -> None:
    model, batch = language_model(llama_folder), CausalLMTask(0).collate(CHATS)
    with pytest.raises(IndexError):
        label_logits(model, batch | {"input_ids": batch["input_ids"] + 10_000})
    assert not model.lm_head._forward_pre_hooks


def test_half_precision_logits_are_widened(llama_folder: Path) -> None:
    model = language_model(llama_folder, torch.bfloat16)
    assert label_logits(model, CausalLMTask(0).collate(CHATS)).dtype == torch.float32


def test_causal_evaluation_is_per_token_whatever_the_batches(llama_folder: Path) -> None:
    model, task = language_model(llama_folder), CausalLMTask(0, label_smoothing=0.1)
    with torch.no_grad():
        one, all_at_once = (
            task.evaluate(model, CHATS, batch_size=size, device=CPU, autocast=nullcontext) for size in (1, 3)
        )
        expected = float(model(**full_batch()).loss)
    assert one == pytest.approx(all_at_once)
    assert one["loss"] == pytest.approx(expected, rel=1e-6)  # not smoothed
    assert one["perplexity"] == pytest.approx(torch.tensor(expected).exp().item(), rel=1e-6)


def test_a_head_that_is_called_by_keyword_is_narrowed_afterwards(llama_folder: Path) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float64).eval()
    batch = CausalLMTask(0).collate([{"input_ids": [7, 8, 9, 10], "labels": [-100, -100, 9, 10]}])
    with torch.no_grad():
        expected = label_logits(model, batch)

        class ByKeyword(type(model.lm_head)):
            def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
                return super().__call__(input=hidden)

        model.lm_head.__class__ = ByKeyword
        torch.testing.assert_close(label_logits(model, batch), expected)
