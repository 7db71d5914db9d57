"""The task of predicting the next token: batches, the loss as a sum over label tokens, evaluation.

Logits are computed only where a label is: the output head gets the hidden states of the labelled positions. With a
vocabulary of 49,152 and a third of the tokens labelled this saves two thirds of the largest tensors of a step. Knows
encoded examples and Hugging Face causal language models; not where either came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frostline.data.chat import IGNORED
from frostline.data.collate import pad_batch
from frostline.tree import unwrap

if TYPE_CHECKING:
    from frostline.training.task import Autocast, Batch


class CausalLMTask:
    """Implements `frostline.training.Task`.

    Args:
        pad_token_id: fills shorter examples of a batch; masked, so its value does not matter.
        label_smoothing: share of each target that is spread evenly over the vocabulary.
    """

    task_type = "CAUSAL_LM"
    unit: Literal["examples", "tokens"] = "tokens"
    metric_names = ("loss", "perplexity", "token_accuracy")
    default_metric: tuple[str, Literal["min", "max"]] = ("loss", "min")

    def __init__(self, pad_token_id: int, label_smoothing: float = 0.0) -> None:
        self.pad_token_id = pad_token_id
        self.label_smoothing = label_smoothing

    def collate(self, examples: Sequence[Any]) -> Batch:
        """`input_ids`, `attention_mask`: [batch, sequence]; `positions`, `targets`: [label tokens].

        `positions` index the flattened [batch x sequence] positions whose *next* token is a target.
        """
        batch = pad_batch(examples, self.pad_token_id, IGNORED)
        next_labels = F.pad(batch.pop("labels")[:, 1:], (0, 1), value=IGNORED).flatten()
        batch["positions"] = (next_labels != IGNORED).nonzero().squeeze(-1)
        batch["targets"] = next_labels[batch["positions"]]
        return batch

    def num_targets(self, batch: Batch) -> float:
        """Label tokens."""
        return float(len(batch["targets"]))

    def num_units(self, batch: Batch) -> int:
        """Tokens without padding."""
        return int(batch["attention_mask"].sum())

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy summed over the label tokens; float32 or wider."""
        logits = label_logits(model, batch)
        return F.cross_entropy(logits, batch["targets"], reduction="sum", label_smoothing=self.label_smoothing)

    def evaluate(
        self, model: nn.Module, examples: Sequence[Any], *, batch_size: int, device: torch.device, autocast: Autocast
    ) -> dict[str, Any]:
        """`loss` per label token (never smoothed), `perplexity`, `token_accuracy`."""
        loss = hits = total = 0.0
        ordered = sorted(examples, key=lambda example: -len(example["input_ids"]))
        for start in range(0, len(ordered), batch_size):
            batch = {
                name: value.to(device) for name, value in self.collate(ordered[start : start + batch_size]).items()
            }
            with autocast():
                logits = label_logits(model, batch)
            loss += float(F.cross_entropy(logits, batch["targets"], reduction="sum"))
            hits += float((logits.argmax(-1) == batch["targets"]).sum())
            total += self.num_targets(batch)
        mean = loss / max(total, 1.0)
        return {
            "loss": mean,
            # exp(710) is beyond a float: a model that bad has no perplexity worth printing.
            "perplexity": math.exp(mean) if mean < 700 else math.inf,
            "token_accuracy": hits / max(total, 1.0),
        }


def label_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of the labelled positions only: [label tokens, vocabulary], float32 or wider.

    The hidden states are narrowed by a hook before the output head runs, so the head is called as the module it is
    (adapted or not), and whatever the model does to logits afterwards (scaling, soft-capping) still happens. A model
    whose head cannot be found, is not called as a module, or gets its input by keyword computes all logits and is
    narrowed afterwards.
    """
    positions = batch["positions"]
    bare: Any = unwrap(model)
    head = bare.get_output_embeddings() if hasattr(bare, "get_output_embeddings") else None
    narrowed: list[bool] = []

    def narrow(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not inputs:  # called by keyword
            return inputs
        hidden = inputs[0]  # [batch, sequence, features] -> [1, label tokens, features]
        narrowed.append(True)
        return (hidden.flatten(0, 1)[positions].unsqueeze(0), *inputs[1:])

    hook = head.register_forward_pre_hook(narrow) if isinstance(head, nn.Module) else None
    try:
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    finally:
        if hook is not None:
            hook.remove()
    logits = output.logits.flatten(0, 1)
    if not narrowed:
        logits = logits[positions]
    return logits if logits.dtype == torch.float64 else logits.float()
