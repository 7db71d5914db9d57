"""In which dtype small updates beside a weight are kept."""

from __future__ import annotations

import torch


def update_dtype(base: torch.dtype) -> torch.dtype:
    """float32 and float64 as they are; float32 beside anything narrower (bfloat16, float16, packed integers).

    Small updates are lost in 8 bits of mantissa.
    """
    return base if base in (torch.float32, torch.float64) else torch.float32
