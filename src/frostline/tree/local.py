"""What of a tensor lies in this process, and in what kind of numbers it is really stored.

A DTensor of FSDP2 or tensor parallel, and a quantized weight that poses as float, are tensors made of plain tensors.
Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter


def local_parts(tensor: Tensor) -> Sequence[Tensor]:
    """The plain tensors that hold what this process has of `tensor`: itself, the local shard, or the packed pieces.

    A shard may be empty. No collective, no copy, no gradient.
    """
    flatten: Any = None
    if type(tensor) not in (Tensor, Parameter):
        flatten = getattr(tensor, "__tensor_flatten__", None)  # torch's protocol of tensors made of others
    if flatten is None:
        return (tensor.detach(),)
    names = cast("list[str]", flatten()[0])  # some are no tensors: the mesh of a DTensor, a scale that is not there
    inner = [getattr(tensor, name) for name in names]
    return tuple(part for held in inner if isinstance(held, Tensor) for part in local_parts(held))


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of the numbers that are kept: that of the packed integers where `tensor` merely poses as float."""
    if type(tensor) in (Tensor, Parameter):
        return tensor.dtype
    packed = (part.dtype for part in local_parts(tensor) if not is_trainable_dtype(part.dtype))
    return next(packed, tensor.dtype)


def is_trainable_dtype(dtype: torch.dtype) -> bool:
    """Whether numbers of this dtype can take the steps of an optimizer: 8-bit floats and integers cannot."""
    return (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1


def is_distributed(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor: a part, or one of equal copies, of a tensor that several processes hold."""
    # By name: importing torch.distributed.tensor only to look costs a second.
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)
