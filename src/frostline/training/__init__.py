"""Training: the loop, and one small file for each thing it uses.

`loop.train` is meant to be read in one sitting. Knows nothing of recipes, tokenizers or the command line.
"""

from frostline.training.batches import GlobalBatches, num_steps
from frostline.training.device import resolve_device
from frostline.training.evaluation import evaluate, scalars
from frostline.training.gradient_checkpointing import enable_gradient_checkpointing
from frostline.training.loop import train
from frostline.training.metrics_log import read_metrics
from frostline.training.optimizer import build_optimizer
from frostline.training.picture import draw_curves
from frostline.training.precision import autocast_for, convert_trained
from frostline.training.schedule import LearningRateSchedule, build_schedule
from frostline.training.seeding import preserved_rng, seed_everything
from frostline.training.state import TrainResult
from frostline.training.task import Autocast, Batch, Example, Task

__all__ = [
    "Autocast",
    "Batch",
    "Example",
    "GlobalBatches",
    "LearningRateSchedule",
    "Task",
    "TrainResult",
    "autocast_for",
    "build_optimizer",
    "build_schedule",
    "convert_trained",
    "draw_curves",
    "enable_gradient_checkpointing",
    "evaluate",
    "num_steps",
    "preserved_rng",
    "read_metrics",
    "resolve_device",
    "scalars",
    "seed_everything",
    "train",
]
