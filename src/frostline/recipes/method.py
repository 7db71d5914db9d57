"""The PEFT method that a config asks for, with the run's seed."""

from __future__ import annotations

from frostline.adapters import PEFT, parse_method
from frostline.config.load import LoadedConfig


def method_of(loaded: LoadedConfig) -> PEFT | None:
    """The PEFT method of the config, its initial values seeded by `training.seed`; None without a `peft` block."""
    block = loaded.data.get("peft")
    if block is None:
        return None
    return parse_method(block, loaded.origins.below("peft")).seeded(loaded.config.training.seed)
