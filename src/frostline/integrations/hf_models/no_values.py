"""Builds on the meta device without the parts of torch that only values need. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors


class NoValues(TorchFunctionMode):
    """Spares the meta device what it does in Python, for which torch first imports sympy (0.4 s).

    There is nothing to fill for `torch.nn.init`, and `arange` and `empty_like` are shapes.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See `TorchFunctionMode`."""
        del types
        return _without_values(func, args, kwargs or {})


class MetaWithoutValues(DeviceContext):
    """`torch.device("meta")` and `NoValues` in one mode: every tensor that is made passes one instead of two."""

    def __init__(self) -> None:
        super().__init__("meta")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See `TorchFunctionMode`."""
        del types
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return _without_values(func, args, kwargs)


def _without_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func is torch.empty:  # what large models are made of
        return func(*args, **kwargs)
    if getattr(func, "__module__", None) in ("torch.nn.init", "transformers.initialization"):
        return args[0] if args else kwargs["tensor"]
    if func is torch.arange and str(kwargs.get("device")) == "meta" and kwargs.get("out") is None:
        values = func(*args, **{**kwargs, "device": "cpu"})
        return torch.empty(values.shape, dtype=values.dtype, device="meta", requires_grad=values.requires_grad)
    if func is torch.empty_like and args and args[0].is_meta and args[0].is_contiguous():
        defaults: dict[str, Any] = {"dtype": args[0].dtype, "device": "meta"}
        return torch.empty(args[0].shape, **{**defaults, **kwargs})
    return func(*args, **kwargs)
