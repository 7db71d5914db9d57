"""Collate: examples to padded tensors, and the order of examples in each epoch.

Knows token ids and labels as lists of numbers; nothing of texts, tokenizers or models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

PaddingSide = Literal["right", "left"]


def pad_batch(
    examples: Sequence[Mapping[str, Any]],
    pad_token_id: int,
    label_pad: int = -100,
    padding_side: PaddingSide = "right",
) -> dict[str, Tensor]:
    """Tensors of a batch, padded to its longest example.

    Args:
        examples: mappings with `input_ids` (list of int); optional `attention_mask`, `token_type_ids` (same length) and
            `labels`: a list of int as long as `input_ids` (per token), an int (class), a float (regression) or a list
            of float (multi-label).
        pad_token_id: fills `input_ids`; padded places have attention mask 0.
        label_pad: fills per-token labels.
        padding_side: "left" is for generation.

    Returns:
        `input_ids`, `attention_mask`, `token_type_ids` where given: [batch, sequence] int64; `labels` where given:
        [batch, sequence] int64, [batch] int64, [batch] float32 or [batch, num_labels] float32.
    """
    if not examples:
        raise ValueError("a batch needs at least one example")
    first = examples[0]
    input_ids = [example["input_ids"] for example in examples]
    masks = [example.get("attention_mask") or [1] * len(example["input_ids"]) for example in examples]
    batch = {
        "input_ids": _pad(input_ids, pad_token_id, padding_side),
        "attention_mask": _pad(masks, 0, padding_side),
    }
    if "token_type_ids" in first:
        batch["token_type_ids"] = _pad([example["token_type_ids"] for example in examples], 0, padding_side)
    if "labels" in first:
        labels = [example["labels"] for example in examples]
        if isinstance(labels[0], list) and not isinstance(labels[0][0], float):
            batch["labels"] = _pad(labels, label_pad, padding_side)
        elif isinstance(labels[0], int):
            batch["labels"] = torch.tensor(labels, dtype=torch.int64)
        else:
            batch["labels"] = torch.tensor(labels, dtype=torch.float32)
    return batch


def _pad(rows: Sequence[list[int]], fill: int, side: PaddingSide) -> Tensor:
    longest = max(len(row) for row in rows)
    if side == "left":
        table = [[fill] * (longest - len(row)) + row for row in rows]
    else:
        table = [row + [fill] * (longest - len(row)) for row in rows]
    return torch.tensor(table, dtype=torch.int64)


@dataclass(frozen=True)
class EpochOrder:
    """The order in which an epoch visits the examples: a function of seed and epoch alone, so resume is exact.

    Every example comes once per epoch; a last global batch that is smaller than the others is kept, not dropped.
    """

    num_examples: int
    seed: int

    def order(self, epoch: int) -> list[int]:
        """Permutation of 0 .. `num_examples` - 1 for `epoch` (counted from 0)."""
        digest = hashlib.blake2b(f"epoch order {self.seed} {epoch}".encode(), digest_size=8).digest()
        # torch takes seeds of 64 bits but two halves of that range are one: stay in the positive half
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return torch.randperm(self.num_examples, generator=generator).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
