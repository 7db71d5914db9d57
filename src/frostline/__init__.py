"""Frostline fine-tunes exactly the part of a model that you chose, proves it, and keeps only what it trained.

    import frostline as fl

    model, plan = fl.prepare(model, peft=fl.LoRA(rank=8, target_modules=["*_proj"]))
    print(plan.render())

Names are imported on first use, so that `import frostline` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from frostline.adapters import PEFT, LoRA
    from frostline.errors import (
        AdapterError,
        ArgumentError,
        CheckpointError,
        ConfigError,
        DataError,
        FrostlineError,
        ModelError,
        PlanMismatchError,
        SelectorError,
        TrainingError,
    )
    from frostline.preparation import merge, prepare, resolve
    from frostline.sharing import load_adapter, load_trained, save_adapter, save_trained
    from frostline.trainability import Decision, Prover, TrainabilityPlan, enter_phase, plan_of

_HOME = {
    "PEFT": "frostline.adapters",
    "LoRA": "frostline.adapters",
    "merge": "frostline.preparation",
    "load_adapter": "frostline.sharing",
    "load_trained": "frostline.sharing",
    "save_adapter": "frostline.sharing",
    "save_trained": "frostline.sharing",
    "AdapterError": "frostline.errors",
    "ArgumentError": "frostline.errors",
    "CheckpointError": "frostline.errors",
    "ConfigError": "frostline.errors",
    "DataError": "frostline.errors",
    "FrostlineError": "frostline.errors",
    "ModelError": "frostline.errors",
    "PlanMismatchError": "frostline.errors",
    "SelectorError": "frostline.errors",
    "TrainingError": "frostline.errors",
    "prepare": "frostline.preparation",
    "resolve": "frostline.preparation",
    "Decision": "frostline.trainability",
    "Prover": "frostline.trainability",
    "TrainabilityPlan": "frostline.trainability",
    "enter_phase": "frostline.trainability",
    "plan_of": "frostline.trainability",
}

__all__ = [
    "PEFT",
    "AdapterError",
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Decision",
    "FrostlineError",
    "LoRA",
    "ModelError",
    "PlanMismatchError",
    "Prover",
    "SelectorError",
    "TrainabilityPlan",
    "TrainingError",
    "enter_phase",
    "load_adapter",
    "load_trained",
    "merge",
    "plan_of",
    "prepare",
    "resolve",
    "save_adapter",
    "save_trained",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'frostline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
