"""What the loop asks of a task: how examples become batches, how a batch becomes a loss, how a model is scored.

Knows nothing of recipes, tokenizers or particular models; recipes implement this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Example = Mapping[str, Any]
Batch = dict[str, Tensor]

#: Makes a fresh context that runs a forward in the precision of the run: `with autocast(): ...`
Autocast = Callable[[], AbstractContextManager[Any]]


class Task(Protocol):
    """One kind of training: classification, causal language modelling, ...

    Attributes:
        task_type: the word that peft's `adapter_config.json` holds: `SEQ_CLS`, `CAUSAL_LM`.
        unit: what progress counts per second.
        metric_names: the keys of `evaluate` that are numbers, those that are not always defined included.
        default_metric: name among them that picks the best checkpoint, and its direction.
    """

    @property
    def task_type(self) -> str: ...

    @property
    def unit(self) -> Literal["examples", "tokens"]: ...

    @property
    def metric_names(self) -> Sequence[str]: ...

    @property
    def default_metric(self) -> tuple[str, Literal["min", "max"]]: ...

    def collate(self, examples: Sequence[Any]) -> Batch:
        """Examples -> padded CPU tensors, each [micro_batch, ...]. Draws no random numbers."""
        ...

    def num_targets(self, batch: Batch) -> float:
        """What the loss is divided by: label tokens, or the sum of class weights, of a batch on the CPU."""
        ...

    def num_units(self, batch: Batch) -> int:
        """Examples or tokens in a batch on the CPU, for the speed that progress shows."""
        ...

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss *summed* over the label tokens of `batch`: a scalar with gradient, on the model's device."""
        ...

    def evaluate(
        self, model: nn.Module, examples: Sequence[Any], *, batch_size: int, device: torch.device, autocast: Autocast
    ) -> dict[str, Any]:
        """Scores `model` on `examples`: `loss` and metrics as floats, anything larger under `report`.

        The caller sets eval mode and turns gradients off.
        """
        ...
