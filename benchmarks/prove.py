"""Times what the proof costs: the same 100-step run with and without it, in lockstep.

    python benchmarks/prove.py [--steps 100] [--pairs 3] [--case full|lora|all] [--batch 8]

Two copies of one model take the same steps, in turn and in changing order, so that a machine whose speed drifts slows
both. All that the proof does is in the clock: remembering the frozen part, the watched steps, one look before a
checkpoint, the comparison at the end. Reported are the ratio with / without; the same ratio of two runs neither of
which proves anything, to tell how far such a ratio is off on this machine; and the share of the run that was spent in
calls of the prover, the steadier number. From pair to pair the side that proves is built first or second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import frostline as fl
from frostline.trainability import set_training_mode

SEQUENCE, LABELS = 64, 5
CASES: dict[str, dict[str, Any]] = {
    "full": {"freeze_config": {"freeze_modules": ["embeddings", {"layers": ":3"}]}},
    "lora": {"peft": fl.LoRA(rank=8, target_modules=["query", "value"])},
}


def minilm() -> nn.Module:
    """A BERT of MiniLM's size: 6 layers of width 384, 22.7 million parameters."""
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_labels=LABELS
    )
    return BertForSequenceClassification(config)


@dataclass
class Side:
    """One of the two runs; `proves` says which."""

    case: str
    proves: bool
    batch: int
    seconds: float = 0.0
    in_prover: float = 0.0

    def __post_init__(self) -> None:
        self.model, self.plan = fl.prepare(minilm(), new=NEW, **CASES[self.case])
        trained = [param for param in self.model.parameters() if param.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
        set_training_mode(self.model, self.plan)
        self.prover: fl.Prover | None = None

    def begin(self) -> None:
        if self.proves:
            self.prover = self._timed(lambda: fl.Prover(self.model, self.plan))

    def step(self, number: int) -> None:
        draw = torch.Generator().manual_seed(number)
        ids = torch.randint(0, 30522, (self.batch, SEQUENCE), generator=draw)
        labels = torch.randint(0, LABELS, (self.batch,), generator=draw)
        started = time.perf_counter()
        self.model(input_ids=ids, labels=labels).loss.backward()
        nn.utils.clip_grad_norm_([param for group in self.optimizer.param_groups for param in group["params"]], 1.0)
        prover = self.prover
        if prover is not None and prover.watching:
            self._timed(lambda: prover.before_step(number, 1e-3, self.optimizer), inside=True)
        self.optimizer.step()
        if prover is not None and prover.watching:
            self._timed(prover.after_step, inside=True)
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds += time.perf_counter() - started

    def end(self) -> None:
        if self.prover is not None:
            self._timed(self.prover.before_save)
            self._timed(self.prover.final_check)

    def _timed(self, call: Callable[[], Any], *, inside: bool = False) -> Any:
        started = time.perf_counter()
        result = call()
        spent = time.perf_counter() - started
        self.in_prover += spent
        self.seconds += 0.0 if inside else spent
        return result


NEW = ("classifier.weight", "classifier.bias")


def compare(case: str, num_steps: int, batch: int, proves: tuple[bool, bool]) -> tuple[float, float, float]:
    """Seconds of the first side / seconds of the second, the second's seconds, and seconds inside the prover."""
    sides = [Side(case, each, batch) for each in proves]
    for side in sides:
        side.step(-1 & 0xFFFF)  # warms up threads and memory: not counted
        side.seconds = 0.0
        side.begin()
    for number in range(num_steps):
        for side in sides if number % 2 else sides[::-1]:
            side.step(number)
    for side in sides:
        side.end()
    first, second = sides
    return first.seconds / second.seconds, second.seconds, first.in_prover + second.in_prover


def measure(case: str, num_steps: int, batch: int, pair: int) -> tuple[float, float, float, float]:
    """Ratio with / without, ratio without / without, share of the run inside the prover, seconds of a run."""
    first = pair % 2 == 0
    ratio, seconds, inside = compare(case, num_steps, batch, (first, not first))
    control, _, _ = compare(case, num_steps, batch, (False, False))
    return ratio if first else 1 / ratio, control, inside / seconds, seconds


def spread(values: list[float]) -> str:
    """`median (min to max)`."""
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    arguments = parser.parse_args()
    print(f"{arguments.steps} steps of {arguments.batch} x {SEQUENCE} tokens, {torch.get_num_threads()} threads")
    print(f"{'':<6}{'run, s':>8}{'with / without':>28}{'without / without':>28}{'inside the prover':>20}")
    for case in CASES if arguments.case == "all" else [arguments.case]:
        results = [measure(case, arguments.steps, arguments.batch, pair) for pair in range(arguments.pairs)]
        ratios, controls, shares, seconds = (list(column) for column in zip(*results, strict=True))
        columns = f"{spread(ratios):>28}{spread(controls):>28}{statistics.median(shares):>20.2%}"
        print(f"{case:<6}{statistics.median(seconds):>8.1f}{columns}", flush=True)


if __name__ == "__main__":
    main()
