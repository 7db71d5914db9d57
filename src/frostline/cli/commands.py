"""What the commands do: call the library, print. No decisions live here."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rich.console import Console

from frostline.cli.interruption import interruptible
from frostline.errors import ConfigError, DataError, PlanMismatchError
from frostline.integrations.hf_models.planning import for_planning_only
from frostline.recipes import runs
from frostline.recipes.config_checks import read_config
from frostline.recipes.resuming import require_folder, step_reached
from frostline.recipes.standing import unfinished
from frostline.tree import collector_paused

if TYPE_CHECKING:
    from frostline.checkpoint import RunFolder


def say(line: str) -> None:
    """Progress of slow preparations, beside the output proper."""
    print(line, file=sys.stderr, flush=True)


def import_lightly() -> None:
    """For a process that ends after `plan`."""
    for_planning_only()


@collector_paused()  # a model of 46,000 linears makes a million objects, and the process ends with them
def plan(
    config: Path,
    overrides: Sequence[str],
    *,
    diff: Path | None,
    num_examples: int | None,
    as_json: bool,
    html: Path | None,
    devices: str | None,
) -> None:
    """`frostline plan`."""
    from frostline.cli import plan as planning

    flags = {"diff": diff is not None, "json": as_json, "data": num_examples is not None, "html": html is not None}
    _require_compatible(**flags, devices=devices is not None)
    sizes = planning.parse_devices(devices) if devices is not None else None
    if html is not None:
        planning.require_page(html)
    planned = runs.plan_run(read_config(config, overrides), encode=num_examples is not None, say=say)
    if diff is not None:
        other = planning.other_plan(diff, overrides, say)
        print(planning.comparison(planned.plan.to_json(), other, as_json=as_json))
        return
    forecast = planned.forecast(**sizes) if sizes is not None else None
    if as_json:
        print(planning.as_json(planned, forecast))
        return
    print(planned.render(width=_width(), devices=forecast))
    if html is not None:
        planning.write_page(planned, forecast, html)
        say(f"the page is {html}")
    if num_examples is not None:
        assert planned.assembly.data is not None
        print()
        Console().print(planned.assembly.data.preview(planned.assembly.tokenizer, num_examples))


def train(
    config: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    overwrite: bool,
    allow_plan_change: bool,
    smoke: bool,
) -> None:
    """`frostline train`."""
    _require_compatible(resume=resume, overwrite=overwrite, smoke=smoke, allow_plan_change=allow_plan_change)
    loaded = read_config(config, overrides)
    mode: Literal["new", "resume", "overwrite"] = "resume" if resume else "overwrite" if overwrite else "new"
    if smoke:
        _smoke(runs.shorten(loaded))
        return
    # Before the slow part: a taken folder is known at once.
    require_folder(loaded, mode, allow_plan_change=allow_plan_change)
    again = [str(config), *overrides, *(["--allow-plan-change"] if allow_plan_change else [])]
    with interruptible(loaded.run_folder, again, overwrites=overwrite):
        planned = runs.plan_run(loaded, say=say)
        shown = planned.at_step(step_reached(loaded.run_folder)) if resume else planned
        print(shown.render(width=_width()), flush=True)
        print(flush=True)
        result = runs.train_run(planned, mode=mode, allow_plan_change=allow_plan_change, console=_console(), say=say)
    _print_result(loaded.run_folder, result)


def evaluate(run: Path, checkpoint: str, *, as_json: bool) -> None:
    """`frostline evaluate`."""
    from frostline.recipes.finished import FinishedRun, evaluate_run

    finished = FinishedRun.open(run, checkpoint)
    _say_unfinished(finished.folder)
    scores = evaluate_run(finished, say=say)
    if as_json:
        print(json.dumps({score.part: _finite(score.metrics) for score in scores}, indent=1))
        return
    for score in scores:
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in score.metrics.items())
        print(f"{score.part} ({score.num_examples:,} examples, {finished.checkpoint.name}): {numbers}")
        if score.report:
            print(score.report)


def predict(
    run: Path, file: str | None, checkpoint: str, output: Path | None, options: Mapping[str, Any], *, overwrite: bool
) -> None:
    """`frostline predict`."""
    from frostline.checkpoint.atomic import write_file
    from frostline.config.origin import Origin
    from frostline.data import load_source
    from frostline.data.rows import Rows
    from frostline.recipes.finished import FinishedRun, predict_run

    finished = FinishedRun.open(run, checkpoint)
    _say_unfinished(finished.folder)
    if output is not None:
        _require_output(output, overwrite)
    elif overwrite:
        raise ConfigError(
            "--overwrite has no effect without --output",
            where="command line",
            possible="--output FILE --overwrite",
            fix="add --output, or leave it out",
        )
    if file in (None, "-"):
        column = finished.loaded.config.data.columns.text or "text"
        rows = Rows.from_dicts([{column: line} for line in _read_lines()], "standard input")
    else:
        rows = load_source(file, origin=Origin("FILE", "command line"))
    if not len(rows):
        raise ConfigError(
            "there is nothing to predict on",
            where="standard input",
            possible="one text a line, or a data file as second argument",
            fix="give a FILE, or pipe text into the command",
        )
    answers = predict_run(finished, rows, say=say, **options)
    text = "".join(json.dumps(answer, ensure_ascii=False, default=str) + "\n" for answer in answers)
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text)
        say(f"{len(answers):,} rows in {output}")


def export(run: Path, target: str, directory: Path, checkpoint: str) -> None:
    """`frostline export`."""
    from frostline.recipes.exporting import export_run
    from frostline.recipes.finished import FinishedRun

    finished = FinishedRun.open(run, checkpoint)
    _say_unfinished(finished.folder)
    export_run(finished, cast("Literal['peft', 'merged']", target), directory, say=say)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{target} export of {finished.checkpoint} in {directory} ({size:,} bytes)")


def inspect(directory: Path, *, check: bool) -> None:
    """`frostline inspect`."""
    from frostline.cli.inspection import describe

    print(describe(directory, check=check))


def schema() -> None:
    """`frostline schema`."""
    from frostline.config import json_schema

    print(json.dumps(json_schema(), indent=2))


def _smoke(loaded: Any) -> None:
    """Train a few steps in a folder of its own, then load the checkpoint into a fresh base and score it again."""
    import torch

    from frostline.recipes.finished import FinishedRun, evaluate_run

    planned = runs.plan_run(loaded, encode=False, say=say)
    print(planned.render(width=_width()), flush=True)
    print(flush=True)
    assert planned.assembly.data is not None
    scored = planned.assembly.data.validation is not None
    with tempfile.TemporaryDirectory(prefix="frostline-smoke-") as folder:
        run = Path(folder) / "run"
        result = runs.train_run(planned, folder=run, console=_console(), say=say)
        reloaded = FinishedRun.open(run, "latest")
        if not scored:
            reloaded.load_model(reloaded.assemble(with_data=False, say=say), torch.device("cpu"))
            print(result.proof)
            print(f"smoke run: {result.steps} steps, saved, reloaded; no validation data to score; nothing was kept")
            return
        again = {score.part: score for score in evaluate_run(reloaded, parts=("validation",), say=say, loaded=loaded)}
    first, second = result.last_metrics["loss"], again["validation"].metrics["loss"]
    if not abs(first - second) <= 1e-5 * max(1.0, abs(first)):  # `not`: true for NaN too
        raise PlanMismatchError(
            f"the reloaded checkpoint scores loss {second}, but the trained model {first}",
            where="--smoke",
            possible="equal losses",
            fix="report this: something that training changed is not in the checkpoint",
        )
    print(result.proof)
    print(
        f"smoke run: {result.steps} steps, evaluated, saved, reloaded with the same loss ({second}); nothing was kept"
    )


def _print_result(folder: Path, result: Any) -> None:
    trained_part = next((folder / name for name in ("adapter", "trained") if (folder / name).exists()), folder)
    size = sum(path.stat().st_size for path in trained_part.resolve().glob("*.safetensors"))
    print()
    print(f"{result.steps:,} steps in {result.seconds:.0f} s" + (", stopped early" if result.stopped_early else ""))
    if result.best_metric is not None and result.best_value is not None:
        print(f"best      {result.best_metric} {result.best_value:.4f} at step {result.best_step:,}")
    if result.proof:
        print(f"proof     {result.proof}")
    for remark in result.remarks:
        print(f"note      {remark}")
    print(f"saved     {trained_part} ({size:,} bytes)")
    print(f"next      frostline evaluate {folder}")


_CONTRADICTIONS = (
    ("resume", "overwrite"),
    ("smoke", "resume"),
    ("smoke", "overwrite"),
    ("diff", "data"),
    ("diff", "html"),
    ("diff", "devices"),
    ("json", "data"),
    ("json", "html"),
    ("html", "data"),
)


def _require_compatible(**flags: bool) -> None:
    for left, right in _CONTRADICTIONS:
        if flags.get(left) and flags.get(right):
            raise ConfigError(
                f"--{left} and --{right} do not go together",
                where="command line",
                possible="one of them",
                fix="leave one out",
            )
    if flags.get("allow_plan_change") and not flags["resume"]:
        raise ConfigError(
            "--allow-plan-change has no effect without --resume",
            where="command line",
            possible="--resume --allow-plan-change",
            fix="add --resume, or leave it out",
        )


def _say_unfinished(run: RunFolder) -> None:
    line = unfinished(run)
    if line is not None:
        say(line)


def _require_output(file: Path, overwrite: bool) -> None:
    """Before the model is loaded: predictions that have nowhere to go are not worth computing."""
    if file.is_file() and not overwrite:
        raise ConfigError(
            f"the file {file} exists already",
            where="--output",
            possible="a file that is not there yet",
            fix="give --overwrite to replace it, or another name",
        )
    if (file.exists() and not file.is_file()) or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(
            f"cannot write predictions to {file}" + (", which is a folder" if file.is_dir() else ""),
            where="--output",
            possible="a file in a folder that exists and can be written",
            fix="correct the path, or make the folder",
        )


def _read_lines() -> list[str]:
    """The lines of standard input that hold something; as UTF-8 whatever the locale says."""
    lines: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input is not UTF-8: byte 0x{line[error.start]:02x} in line {number}",
                where=f"standard input, line {number}",
                possible="UTF-8 text, one example a line",
                fix="convert it first, as with iconv -f CP1252 -t UTF-8",
            ) from None
        if text.strip():
            lines.append(text)
    return lines


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN


def _console() -> Console:
    return Console(stderr=True)


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(60, int(columns))
    try:
        return max(60, os.get_terminal_size().columns)
    except OSError:  # not a terminal: nothing wraps, so nothing needs to be cut
        return 1_000
