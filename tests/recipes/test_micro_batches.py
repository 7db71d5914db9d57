"""The weights do not depend on how a global batch is split: 1x8, 2x4 and 8x1 in float64, with unequal lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Make = Callable[..., dict[str, Any]]
SPLITS = (8, 4, 2, 1)


def weights_of_splits(launch: Any, config: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    return [launch(config, f"training.micro_batch_size={size}", name=f"micro-{size}").tensors for size in SPLITS]


def assert_equal_weights(results: list[dict[str, torch.Tensor]]) -> None:
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for name, tensor in results[0].items():
            assert tensor.dtype == torch.float64
            torch.testing.assert_close(
                other[name], tensor, rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize(
    "training", [{}, {"class_weights": {"neg": 1.7, "pos": 0.3}}, {"label_smoothing": 0.1}], ids=str
)
def test_bert(training: dict[str, Any], classify: Make, still_bert_folder: Path, launch: Any) -> None:
    config = classify(
        model={"name_or_path": str(still_bert_folder), "dtype": "float64"},
        training={"batch_size": 8, "max_steps": 3, "max_grad_norm": None, **training},
        optimizer={"name": "sgd", "lr": 1.0},  # Adam and clipping would hide a loss of another scale
        data={"validation": None},
    )
    assert_equal_weights(weights_of_splits(launch, config))


@pytest.mark.parametrize("train_on", ["assistant", "all"])
def test_llama(train_on: str, converse: Make, launch: Any, llama_folder: Path) -> None:
    config = converse(
        model={"name_or_path": str(llama_folder), "dtype": "float64"},
        training={"batch_size": 8, "max_steps": 3},
        data={"validation": None, "train_on": train_on},
    )
    results = weights_of_splits(launch, config)
    assert_equal_weights(results)
    other_batch = launch(config, "training.batch_size=4", name="other").tensors
    assert any(not torch.allclose(other_batch[name], results[0][name]) for name in other_batch)


def test_full_fine_tuning_of_a_llama_with_tied_embeddings(converse: Make, launch: Any, llama_folder: Path) -> None:
    config = converse(
        model={"name_or_path": str(llama_folder), "dtype": "float64"},
        peft=None,
        training={"batch_size": 8, "max_steps": 2},
        data={"validation": None},
    )
    assert_equal_weights(weights_of_splits(launch, config))
