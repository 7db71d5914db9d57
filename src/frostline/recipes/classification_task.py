"""The task of classifying texts: batches, the loss as a sum, evaluation, and predictions from logits.

Knows encoded examples and models that return `.logits` [batch, num_labels]; not where either came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frostline.data.collate import pad_batch
from frostline.data.labels import LabelMap

from .classification_metrics import METRIC_NAMES, label_set_metrics, regression_metrics, single_label_metrics

if TYPE_CHECKING:
    from frostline.training.task import Autocast, Batch

_MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class ClassificationTask:
    """Implements `frostline.training.Task`.

    Args:
        labels: names and kind of the outputs.
        pad_token_id: fills shorter examples of a batch.
        label_weights: weight of each label in the loss [num_labels]; single_label only.
        label_smoothing: share of each target that is spread evenly over all labels; single_label only.
    """

    task_type = "SEQ_CLS"
    unit: Literal["examples", "tokens"] = "examples"

    def __init__(
        self,
        labels: LabelMap,
        pad_token_id: int,
        label_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        self.labels = labels
        self.pad_token_id = pad_token_id
        self.label_smoothing = label_smoothing
        # float64: sums of float32 weights would differ with the split into micro-batches.
        self._weights = None if label_weights is None else torch.tensor(label_weights, dtype=torch.float64)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """`loss` and the metrics of the problem; `pearson` is not defined for every evaluation."""
        return ("loss", *METRIC_NAMES[self.labels.problem])

    @property
    def default_metric(self) -> tuple[str, Literal["min", "max"]]:
        """Accuracy; macro-F1 with several labels each; mean squared error for a regression."""
        if self.labels.problem == "regression":
            return ("mse", "min")
        return ("accuracy", "max") if self.labels.problem == "single_label" else ("macro_f1", "max")

    def collate(self, examples: Sequence[Any]) -> Batch:
        """`input_ids`, `attention_mask`, where given `token_type_ids`: [batch, sequence]; `labels` as `pad_batch`."""
        return pad_batch(examples, self.pad_token_id)

    def num_targets(self, batch: Batch) -> float:
        """Examples, or the sum of their labels' weights; with several labels each, examples x labels."""
        labels = batch["labels"]
        if self._weights is None:
            return float(labels.numel())
        # torch's own weighted mean divides by the weight of the target label, smoothing or not.
        return float(self._weights[labels].sum())

    def num_units(self, batch: Batch) -> int:
        """Examples."""
        return len(batch["input_ids"])

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy, binary cross entropy, or squared error, summed over the batch; float32 or wider."""
        return self._loss_sum(self._forward(model, batch), batch["labels"])

    def _forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(**{name: batch[name] for name in _MODEL_INPUTS if name in batch}).logits
        return logits if logits.dtype == torch.float64 else logits.float()

    def _loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.labels.problem == "single_label":
            weights = None if self._weights is None else self._weights.to(logits.device, logits.dtype)
            return F.cross_entropy(
                logits, labels, weight=weights, reduction="sum", label_smoothing=self.label_smoothing
            )
        if self.labels.problem == "multi_label":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
        return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")

    def evaluate(
        self, model: nn.Module, examples: Sequence[Any], *, batch_size: int, device: torch.device, autocast: Autocast
    ) -> dict[str, Any]:
        """`loss` (per target) and the metrics of the problem; `report` holds the per-class table."""
        logits = self.logits(model, examples, batch_size=batch_size, autocast=autocast, device=device)
        labels = _labels(examples)
        num_targets = self.num_targets({"labels": labels})  # 0 where every label here has the class weight 0
        loss = float(self._loss_sum(logits, labels)) / num_targets if num_targets else float("nan")
        if self.labels.problem == "single_label":
            metrics = single_label_metrics(logits.argmax(-1), labels, self.labels.names)
        elif self.labels.problem == "multi_label":
            metrics = label_set_metrics(logits > 0, labels > 0.5, self.labels.names)
        else:
            metrics = regression_metrics(logits.squeeze(-1).double(), labels.double())
        return {"loss": loss, **metrics}

    def logits(
        self,
        model: nn.Module,
        examples: Sequence[Any],
        *,
        batch_size: int,
        device: torch.device | None = None,
        autocast: Autocast = nullcontext,
    ) -> Tensor:
        """Logits of `examples` in their order, on the CPU: [examples, num_labels]. Longest first: little padding."""
        device = device or next(model.parameters()).device
        order = sorted(range(len(examples)), key=lambda index: -len(examples[index]["input_ids"]))
        rows: list[Tensor] = []
        for start in range(0, len(order), batch_size):
            chosen = [examples[index] for index in order[start : start + batch_size]]
            batch = {name: tensor.to(device) for name, tensor in self.collate(chosen).items()}
            with autocast():
                rows.append(self._forward(model, batch))
        result = torch.cat(rows).detach().cpu()
        unsorted = torch.empty_like(result)
        unsorted[torch.tensor(order)] = result
        return unsorted

    def answers(self, logits: Tensor) -> list[dict[str, Any]]:
        """What `predict` adds to each row, from `logits` [rows, num_labels]."""
        names = self.labels.names
        if self.labels.problem == "regression":
            return [{"predicted_value": float(value)} for value in logits.squeeze(-1)]
        if self.labels.problem == "multi_label":
            table = logits.sigmoid().tolist()
            return [
                {
                    "predicted_labels": [name for name, chance in zip(names, row, strict=True) if chance >= 0.5],
                    "probabilities": dict(zip(names, row, strict=True)),
                }
                for row in table
            ]
        chances, indices = logits.softmax(-1).max(-1)
        return [
            {"predicted_label": names[index], "probability": chance}
            for chance, index in zip(chances.tolist(), indices.tolist(), strict=True)
        ]


def _labels(examples: Sequence[Any]) -> Tensor:
    values = [example["labels"] for example in examples]
    return torch.tensor(values, dtype=torch.int64 if isinstance(values[0], int) else torch.float32)
