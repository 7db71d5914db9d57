"""Which device the run uses, from `device: auto | cpu | cuda | cuda:N | mps`.

Knows nothing of models. A device that was asked for and is not there is an error: the run never falls back silently.
"""

from __future__ import annotations

import torch

from frostline.config.origin import Origin
from frostline.errors import ConfigError


def resolve_device(name: str, origin: Origin | None = None) -> torch.device:
    """The torch device for `name`; `auto` takes CUDA, then MPS, then the CPU.

    Raises:
        ConfigError: the device was asked for by name and this machine does not have it.
    """
    if name == "auto":
        return torch.device(available_devices()[-1])
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _not_available(name, origin) from None
    if device.type not in {torch.device(known).type for known in available_devices()}:
        raise _not_available(name, origin)
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise _not_available(name, origin)
    return device


def available_devices() -> list[str]:
    """Devices of this machine, the preferred one last."""
    devices = ["cpu"]
    if torch.backends.mps.is_available():
        devices.append("mps")
    if torch.cuda.is_available():
        devices += [f"cuda:{index}" for index in reversed(range(torch.cuda.device_count()))]
    return devices


def _not_available(name: str, origin: Origin | None) -> ConfigError:
    return ConfigError(
        f"device {name!r} is not available on this machine",
        where=origin or Origin("device"),
        possible=", ".join(["auto", *available_devices()]),
        fix="use `device: auto`, or install a torch build that supports the device",
    )
