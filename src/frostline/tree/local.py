"""The part of a tensor that lies in this process."""

from __future__ import annotations

from torch import Tensor


def local_part(tensor: Tensor) -> Tensor:
    """`tensor` itself, detached; of a distributed tensor the part that this process holds, without communication."""
    tensor = tensor.detach()
    # By attribute, because the package of DTensor is too slow to import for a look at a type.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
