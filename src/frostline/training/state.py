"""Where a run stands: what a checkpoint keeps beside tensors, and what `train` returns.

Knows nothing of files; checkpoints store `TrainState.progress()` as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frostline.errors import CheckpointError
from frostline.training.best import BestWatch


@dataclass
class TrainState:
    """Position in the run.

    Attributes:
        steps_per_epoch, num_examples, batch_size: the data order that the position counts in.
        data: digest of the training and validation examples, which a resumed run must find again.
        watch: the best metric so far, None without validation data.
        done: optimizer steps done.
        seconds: wall time of the steps done, over all starts of the run, evaluation not included.
        stopped_early: patience was used up after `done` steps.
        metrics: numbers of the last evaluation.
        frozen: digest of the frozen parameters that the run trains beside; empty with `prove: false`.
        waiting: conditional tensors without a gradient so far, by when each must have one; None with `prove: false`.
        held_out: what the caller has to say of the validation and test data, JSON-ready, for evaluations to come.
    """

    steps_per_epoch: int
    num_examples: int
    batch_size: int
    data: str
    watch: BestWatch | None = None
    done: int = 0
    seconds: float = 0.0
    stopped_early: bool = False
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    frozen: str = ""
    waiting: dict[str, int | None] | None = None
    held_out: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def epoch(self) -> float:
        """Passes over the training examples so far."""
        return self.done / self.steps_per_epoch

    def progress(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return {
            "step": self.done,
            "epoch": self.epoch,
            "seconds": self.seconds,
            "stopped_early": self.stopped_early,
            "metrics": self.metrics,
            "num_examples": self.num_examples,
            "data": self.data,
            "batch_size": self.batch_size,
            "frozen": self.frozen,
            "waiting": self.waiting,
            "held_out": self.held_out,
            **({} if self.watch is None else self.watch.state()),
        }

    def restore(self, progress: Mapping[str, Any], source: Path) -> None:
        """Continues from the `progress` of the checkpoint `source`.

        Raises:
            CheckpointError: the checkpoint counts its steps over other data or another batch size.
        """
        for name in ("num_examples", "batch_size"):
            if progress[name] != getattr(self, name):
                raise CheckpointError(
                    f"the checkpoint was made with {name} {progress[name]}, this run has {getattr(self, name)}",
                    where=source,
                    possible="the same training data and batch size as before, so that no example is seen twice",
                    fix="restore the data and config of the run, or start a new run folder",
                )
        if progress["data"] != self.data:
            raise CheckpointError(
                "the examples are not those that the checkpoint was trained on: data or tokenizer have changed",
                where=source,
                possible=f"examples with digest {progress['data'][:8]}, now {self.data[:8]}",
                fix="restore the data and the tokenizer of the run, or start a new run folder",
            )
        self.done, self.seconds = progress["step"], progress["seconds"]
        self.stopped_early, self.metrics = progress["stopped_early"], dict(progress["metrics"])
        if self.watch is not None and "best" in progress:
            self.watch.restore(progress)

    def hold_frozen(self, digest: str, progress: Mapping[str, Any] | None = None, source: Path | None = None) -> None:
        """Remembers the frozen part; with the `progress` of the checkpoint `source`, compares it with what that names.

        Raises:
            CheckpointError: the trained part of the checkpoint was trained beside other frozen parameters.
        """
        before = (progress or {}).get("frozen", "")
        # Digests of another scheme (the part before the colon) cannot be compared; the base's fingerprint was.
        if before.partition(":")[0] == digest.partition(":")[0] and before != digest:
            raise CheckpointError(
                "the frozen part is not bit for bit the one that the checkpoint was trained beside",
                where=str(source),
                possible=f"frozen parameters with digest {before[:8]}, now {digest[:8]}",
                fix="restore the base model of the run, or start a new run folder",
            )
        self.frozen = digest


def digest_of(*parts: Sequence[Mapping[str, Any]] | None) -> str:
    """SHA-256 over the encoded examples of all `parts`, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"part\0")
        for example in part or ():
            digest.update(repr(sorted(example.items())).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class TrainResult:
    """What `train` returns.

    Attributes:
        steps: optimizer steps done, those before a resume included.
        epochs: passes over the training examples.
        seconds: wall time of the steps, evaluation and saving not included.
        stopped_early: patience ended the run.
        checkpoint: the newest checkpoint.
        best_metric, best_value, best_step: the metric watched, its best value and the steps done then.
        last_metrics: numbers of the last evaluation.
        report: what the last evaluation gave beyond numbers (a per-class table, a confusion matrix).
        proof: one line: the frozen part is bit-identical to what was loaded; empty with `prove: false`.
        remarks: what the proof saw and is not an error, such as gradients that were exactly zero.
    """

    steps: int
    epochs: float
    seconds: float
    stopped_early: bool
    checkpoint: Path | None
    best_metric: str | None
    best_value: float | None
    best_step: int | None
    last_metrics: dict[str, float]
    report: Any
    proof: str
    remarks: tuple[str, ...]
