"""Builds on the meta device without the parts of torch that only values need. Knows nothing of models."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class NoValues(TorchFunctionMode):
    """Spares the meta device what it does in Python, for which torch first imports sympy (0.4 s).

    There is nothing to fill for `torch.nn.init`, and `arange` and `empty_like` are shapes.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) in ("torch.nn.init", "transformers.initialization"):
            return args[0] if args else kwargs["tensor"]
        if func is torch.arange and str(kwargs.get("device")) == "meta":
            values = func(*args, **{**kwargs, "device": "cpu"})
            return torch.empty(values.shape, dtype=values.dtype, device="meta")
        if func is torch.empty_like and args and args[0].is_meta and args[0].is_contiguous():
            defaults: dict[str, Any] = {"dtype": args[0].dtype, "device": "meta"}
            return torch.empty(args[0].shape, **{**defaults, **kwargs})
        return func(*args, **kwargs)
