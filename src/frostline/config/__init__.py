"""YAML with line numbers, strict models, dotted overrides and the JSON schema.

Names are loaded on first use: `Origin` is needed everywhere, pydantic and the YAML parser only to read a config.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from frostline.config.origin import Key, Origin, Origins, join_keys

if TYPE_CHECKING:
    from frostline.config.load import Check, LoadedConfig, load_config
    from frostline.config.models import (
        BestConfig,
        CheckpointConfig,
        ColumnsConfig,
        Config,
        DataConfig,
        EarlyStoppingConfig,
        EvaluationConfig,
        FreezeConfig,
        ModelConfig,
        OptimizerConfig,
        ParameterGroupConfig,
        PeftConfig,
        ScheduleConfig,
        SourceConfig,
        TokenizerConfig,
        TrackingConfig,
        TrainingConfig,
    )
    from frostline.config.overrides import apply_overrides
    from frostline.config.schema import json_schema
    from frostline.config.yaml_file import YamlDocument, dump_yaml, load_yaml

__all__ = [
    "BestConfig",
    "Check",
    "CheckpointConfig",
    "ColumnsConfig",
    "Config",
    "DataConfig",
    "EarlyStoppingConfig",
    "EvaluationConfig",
    "FreezeConfig",
    "Key",
    "LoadedConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Origin",
    "Origins",
    "ParameterGroupConfig",
    "PeftConfig",
    "ScheduleConfig",
    "SourceConfig",
    "TokenizerConfig",
    "TrackingConfig",
    "TrainingConfig",
    "YamlDocument",
    "apply_overrides",
    "dump_yaml",
    "join_keys",
    "json_schema",
    "load_config",
    "load_yaml",
]

_HOMES = {
    "Check": "load",
    "LoadedConfig": "load",
    "YamlDocument": "yaml_file",
    "apply_overrides": "overrides",
    "dump_yaml": "yaml_file",
    "json_schema": "schema",
    "load_config": "load",
    "load_yaml": "yaml_file",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)


def __dir__() -> list[str]:
    return list(__all__)
