"""Every config in `examples/`: plans as it says, trains a few steps, evaluates, exports, resumes bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline.recipes.config_checks import read_config
from frostline.recipes.exporting import export_run
from frostline.recipes.finished import evaluate_run
from frostline.recipes.runs import plan_run

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

RANK, WIDTH, LAYERS, LABELS = 8, 384, 6, 5
HEAD = WIDTH * LABELS + LABELS
# A layer of MiniLM: four square maps, two of the feed-forward part (4 x wide), two norms; each with its biases.
LAYER = 4 * (WIDTH * WIDTH + WIDTH) + 2 * 4 * WIDTH * WIDTH + 4 * WIDTH + WIDTH + 2 * 2 * WIDTH
# Embedding norm; in each layer q, k, v, attention output, its norm, 4 x wide, output, its norm; the pooler.
BIASES = WIDTH + LAYERS * (7 * WIDTH + 4 * WIDTH) + WIDTH
# SmolLM2: 30 layers, 576 wide, 3 of 9 heads for keys and values.
SMOL = 30 * RANK * (2 * (576 + 576) + 2 * (576 + 192))

TRAINED = {
    "bbc_biases": BIASES + HEAD,
    "bbc_last_layers": 2 * LAYER + HEAD,
    "bbc_lora": LAYERS * 2 * RANK * 2 * WIDTH + HEAD,
    "bbc_phases": 2 * LAYER + HEAD,
    "smollm2_chat_lora": SMOL,
}
SHORT = [
    "training.max_steps=4",
    "checkpoint.every=2",
    "checkpoint.keep=9",
    "evaluation.every=2",
]
BBC = [
    *SHORT,
    "training.batch_size=4",
    "training.epochs=null",
    "data.max_examples=24",
    "data.max_length=16",
    "data.validation=12",
]
# Two epochs of two steps, so that the phase at the second epoch comes into force.
IN_PHASES = [line.replace("max_examples=24", "max_examples=8") for line in BBC]


def test_these_are_all_examples() -> None:
    found = sorted(path.stem for path in EXAMPLES.rglob("*.yaml"))
    assert found == sorted(TRAINED)
    assert len(found) == 5


@pytest.fixture(scope="module")
def chat_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `prepare_chat_pairs.py` writes, outside the checkout."""
    file = tmp_path_factory.mktemp("data") / "chat_pairs.jsonl"
    script = EXAMPLES / "data" / "prepare_chat_pairs.py"
    subprocess.run([sys.executable, str(script), str(file)], check=True, capture_output=True)
    return file


@pytest.mark.parametrize("name", [name for name in TRAINED if name.startswith("bbc")])
def test_bbc_example(
    name: str, launch: Any, resumes_bit_for_bit: Callable[..., Any], in_peft: Any, tmp_path: Path
) -> None:
    config = EXAMPLES / f"{name}.yaml"
    planned = plan_run(read_config(config))
    decisions = planned.plan.decisions
    assert sum(decisions[path].num_elements for path in planned.plan.ever_trained) == TRAINED[name]
    assert "800 + 400 used, 5 labels" in planned.render()

    overrides = IN_PHASES if name == "bbc_phases" else BBC
    run = launch(config, *overrides)
    assert run.result.steps == 4
    assert "bit-identical" in run.result.proof
    assert sum(tensor.numel() for tensor in run.tensors.values()) == TRAINED[name]
    if run.planned.plan.peft:
        assert_within_two_percent(run)
    (score,) = evaluate_run(run.open())
    assert (score.part, score.num_examples) == ("validation", 12)
    assert score.metrics == pytest.approx(run.result.last_metrics, rel=1e-4)
    resumes_bit_for_bit(run, config, *overrides, step=2)

    batch = batch_of(run, "Shares in the company fell after the match was called off by the minister.", "Goal!")
    if name == "bbc_lora":
        exported = export_run(run.open(), "peft", tmp_path / "exported")
        theirs: Any = in_peft(bare(run), exported)
    else:
        from transformers import AutoModelForSequenceClassification

        exported = export_run(run.open(), "merged", tmp_path / "exported")
        theirs = AutoModelForSequenceClassification.from_pretrained(exported).eval()
    with torch.no_grad():
        difference = (theirs(**batch).logits - run.model()(**batch).logits).abs().max()
    assert difference <= 1e-5


def test_smollm2_example(
    chat_pairs: Path, launch: Any, resumes_bit_for_bit: Callable[..., Any], in_peft: Any, tmp_path: Path
) -> None:
    """The GGUF file is converted once; the data are made by the script that the example names."""
    config = EXAMPLES / "smollm2_chat_lora.yaml"
    data = f"data.train={chat_pairs}"
    planned = plan_run(read_config(config, [data]))
    decisions = planned.plan.decisions
    assert sum(decisions[path].num_elements for path in planned.plan.trainable) == TRAINED["smollm2_chat_lora"]
    pairs = [json.loads(line) for line in chat_pairs.read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 749
    assert planned.assembly.data is not None
    assert len(planned.assembly.data.train) + 100 == len(pairs)

    short = [data, *SHORT, "training.batch_size=2", "data.validation=4", "data.max_examples=8", "data.max_length=48"]
    run = launch(config, *short)
    if run.planned.plan.peft:
        assert_within_two_percent(run)
    assert run.result.last_metrics["loss"] < next(r["validation_loss"] for r in run.metrics if r["step"] == 0)
    (score,) = evaluate_run(run.open())
    assert score.metrics == pytest.approx(run.result.last_metrics, rel=1e-4)
    resumes_bit_for_bit(run, config, *short, step=2)

    exported = export_run(run.open(), "peft", tmp_path / "exported")
    theirs: Any = in_peft(bare(run), exported)
    batch = batch_of(run, "What is a computer?")
    with torch.no_grad():
        difference = (theirs(**batch).logits - run.model()(**batch).logits).abs().max()
    assert difference <= 1e-4  # of logits up to 30: float32 sums in another order


def assert_within_two_percent(run: Any) -> None:
    """The file holds the trained tensors and next to nothing else."""
    (content,) = run.trained_bytes.values()
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in run.tensors.values())
    assert num_bytes < len(content) <= 1.02 * num_bytes


def bare(run: Any) -> torch.nn.Module:
    """The base with its new head untrained."""
    return run.planned.assembly.load_model().model


def batch_of(run: Any, *texts: str) -> dict[str, torch.Tensor]:
    tokenizer = run.planned.assembly.tokenizer
    return dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
