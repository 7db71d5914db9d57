"""The sections of a config as strict, frozen pydantic models: one file a theme."""

from __future__ import annotations

from frostline.config.models.config import Config
from frostline.config.models.data import ColumnsConfig, DataConfig, SourceConfig
from frostline.config.models.freeze import FreezeConfig
from frostline.config.models.model import Dtype, ModelConfig, TokenizerConfig
from frostline.config.models.peft import MethodConfig, PeftConfig, is_of_another_method
from frostline.config.models.run import (
    BestConfig,
    CheckpointConfig,
    EarlyStoppingConfig,
    EvaluationConfig,
    TrackingConfig,
)
from frostline.config.models.training import (
    OptimizerConfig,
    OptimizerName,
    ParameterGroupConfig,
    ScheduleConfig,
    TrainingConfig,
)

__all__ = [
    "BestConfig",
    "CheckpointConfig",
    "ColumnsConfig",
    "Config",
    "DataConfig",
    "Dtype",
    "EarlyStoppingConfig",
    "EvaluationConfig",
    "FreezeConfig",
    "MethodConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OptimizerName",
    "ParameterGroupConfig",
    "PeftConfig",
    "ScheduleConfig",
    "SourceConfig",
    "TokenizerConfig",
    "TrackingConfig",
    "TrainingConfig",
    "is_of_another_method",
]
