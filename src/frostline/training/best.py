"""Which evaluation was the best so far, and whether to stop early. One metric drives both.

Knows nothing of models or checkpoints; its whole state is four values that a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frostline.config.origin import Origin
from frostline.config.wording import nearest
from frostline.errors import ConfigError


def require_metric(metric: str, names: Iterable[str], origin: Origin | None = None) -> None:
    """Raises ConfigError, with the nearest, unless `metric` is one of `names`."""
    known = sorted(names)
    if metric not in known:
        near = nearest(metric, known)
        raise ConfigError(
            f"no metric is called {metric!r}",
            where=origin or Origin("evaluation.best.metric"),
            possible=(f"did you mean `{near}`? " if near else "") + ", ".join(known),
            fix="name one of these in `evaluation.best.metric`",
        )


@dataclass
class BestWatch:
    """Follows one metric. Of equal values the one with the lower `loss` is better.

    So a small validation set, on which accuracy is soon at its top, does not keep the first checkpoint that got there.

    Attributes:
        metric, mode: name of the metric, and whether less or more is better.
        patience: evaluations without improvement after which the run stops; None never stops.
        value, step: the best value and the number of steps done when it was measured.
        loss: the loss of that evaluation; None where there was none.
        num_without_improvement: evaluations since then.
    """

    metric: str
    mode: Literal["min", "max"]
    patience: int | None = None
    value: float | None = None
    step: int | None = None
    num_without_improvement: int = 0
    loss: float | None = None

    def update(self, step: int, metrics: Mapping[str, Any], origin: Origin | None = None) -> bool:
        """Takes in one evaluation; True when it is the best so far. A value that is not finite never is.

        Raises:
            ConfigError: `metrics` has no such metric.
        """
        names = [name for name, value in metrics.items() if isinstance(value, int | float)]
        require_metric(self.metric, names, origin)
        value, loss = float(metrics[self.metric]), metrics.get("loss")
        if math.isfinite(value) and self._is_best(value, loss):
            self.value, self.loss, self.step, self.num_without_improvement = value, loss, step, 0
            return True
        self.num_without_improvement += 1
        return False

    @property
    def should_stop(self) -> bool:
        """Patience is used up."""
        return self.patience is not None and self.num_without_improvement >= self.patience

    def describe(self) -> str:
        """`accuracy 0.93 at step 50 was not improved by 3 evaluations`."""
        if self.value is None:
            return f"{self.metric} was never a finite number in {self.num_without_improvement} evaluations"
        best = f"{self.metric} {self.value:.4g} at step {self.step}"
        return f"{best} was not improved by {self.num_without_improvement} evaluations"

    def state(self) -> dict[str, Any]:
        """What `restore` takes, JSON-ready."""
        return {
            "best": self.value,
            "best_loss": self.loss,
            "best_step": self.step,
            "num_without_improvement": self.num_without_improvement,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state()` of the run that is resumed."""
        self.value, self.step, self.loss = state["best"], state["best_step"], state.get("best_loss")
        self.num_without_improvement = state["num_without_improvement"]

    def _is_best(self, value: float, loss: float | None) -> bool:
        if self.value is None:
            return True
        if value == self.value:
            return loss is not None and self.loss is not None and loss < self.loss
        return value < self.value if self.mode == "min" else value > self.value
