"""One run of Frostline; prints a line of JSON. Called by `run.py`."""

from __future__ import annotations

import io
import json
import resource
import sys
import time
from pathlib import Path

import cases
from rich.console import Console

from frostline.checkpoint import RunFolder
from frostline.recipes import runs
from frostline.training import train


def main(name: str, folder: str) -> None:
    """Prepare outside the clock, train and save inside."""
    cases.prepare_data(name)
    loaded = runs.read_config(cases.CASES[name].config)
    planned = runs.plan_run(loaded)
    held, plan, base = runs.load_prepared(loaded, planned.assembly, planned.meta)
    data = planned.assembly.data
    assert data is not None
    with RunFolder.open(Path(folder) / "run") as run:
        started = time.perf_counter()
        train(
            model=held.model,
            plan=plan,
            task=planned.assembly.build_task(),
            train_examples=data.train.examples,
            validation_examples=None,
            config=loaded.config,
            run=run,
            base=base,
            extra_files=planned.assembly.write_extras,
            console=Console(file=io.StringIO()),
        )
        seconds = time.perf_counter() - started
        records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [record["loss"] for record in records]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "loss": sum(losses) / len(losses)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
