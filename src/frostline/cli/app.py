"""The commands and their options. What they do lives in `cli/commands.py`, which imports the heavy parts."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from frostline import __version__
from frostline.cli.errors import BAD_INPUT, reported
from frostline.errors import ConfigError

# The class is not public, and typer has it from click or from a copy of click, depending on its version.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="frostline",
    help="Fine-tune exactly the part of a model that you chose, prove it, and keep only what was trained.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as training.max_steps=10.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", metavar="best|latest|step-N", help="Which checkpoint.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]

_process = {"only plans": False}  # set by `console_script` alone: in another program more may follow


class ExportTarget(StrEnum):
    """Formats of `frostline export`."""

    peft = "peft"
    merged = "merged"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"frostline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


@app.command()
def plan(
    config: Config,
    overrides: Overrides = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", metavar="OTHER", help="Who trains otherwise in another config, run or plan.json."),
    ] = None,
    data: Annotated[
        int | None, typer.Option("--data", metavar="N", min=1, help="Show N examples as the model sees them.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan, or the comparison, as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a picture of the model.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", metavar="KEY=N,...", help="Bytes on each device of a group: dp_replicate, dp_shard, tp."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Show what would train and why. Loads no weights."""
    with reported(debug):
        from frostline.cli import commands

        if _process["only plans"]:
            commands.import_lightly()
        commands.plan(config, overrides or [], diff=diff, num_examples=data, as_json=json, html=html, devices=devices)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint; start if there is none.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again; an earlier run goes when the first checkpoint is there.")
    ] = False,
    allow_plan_change: Annotated[
        bool, typer.Option("--allow-plan-change", help="Resume with another freeze_config; the adapters stay.")
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Two steps, evaluate, save, reload; leaves nothing behind.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Train what the plan says."""
    with reported(debug):
        from frostline.cli import commands

        commands.train(
            config,
            overrides or [],
            resume=resume,
            overwrite=overwrite,
            allow_plan_change=allow_plan_change,
            smoke=smoke,
        )


@app.command()
def evaluate(
    run: Run,
    checkpoint: Checkpoint = "best",
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Score a finished run on its validation and test data."""
    with reported(debug):
        from frostline.cli import commands

        commands.evaluate(run, checkpoint, as_json=json)


@app.command()
def predict(
    run: Run,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Data to predict on; without it one text a line from stdin.")
    ] = None,
    checkpoint: Checkpoint = "best",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write JSON lines here, not to stdout.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --output.")] = False,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Rows per forward pass.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Length of generated text, for causal_lm.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Add predictions to data, as JSON lines."""
    with reported(debug):
        from frostline.cli import commands

        options = {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
        given = {name: value for name, value in options.items() if value is not None}
        commands.predict(run, file, checkpoint, output, given, overwrite=overwrite)


@app.command()
def export(
    run: Run,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New folder.")],
    to: Annotated[ExportTarget, typer.Option("--to", help="Adapter for peft, or full model.")] = ExportTarget.peft,
    checkpoint: Checkpoint = "best",
    debug: Debug = False,
) -> None:
    """Write the trained part for other tools."""
    with reported(debug):
        from frostline.cli import commands

        commands.export(run, to.value, directory, checkpoint)


@app.command()
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a checkpoint or an adapter folder.")],
    check: Annotated[bool, typer.Option("--check", help="Verify hashes, names and values of every file.")] = False,
    debug: Debug = False,
) -> None:
    """Show what a run, checkpoint or adapter holds."""
    with reported(debug):
        from frostline.cli import commands

        commands.inspect(directory, check=check)


@app.command()
def schema(debug: Debug = False) -> None:
    """Print the JSON schema of the config file."""
    with reported(debug):
        from frostline.cli import commands

        commands.schema()


def console_script() -> NoReturn:
    """Entry point of the installed command: `main`, with less waiting before and after.

    Importing torch and transformers makes a million objects that live to the end. The collector would walk them again
    and again while they are made, and once more at the exit of the interpreter; `plan` has nothing open by then.
    It also runs no model, so that it needs less of them.
    """
    is_plan = sys.argv[1:2] == ["plan"]
    if is_plan:
        gc.disable()
        _process["only plans"] = True
    else:
        gc.set_threshold(100_000, 20, 100)
    status: object = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    if status == 0 and is_plan:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.exit(status if isinstance(status, int) else 1)


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its status."""
    with reported("--debug" in sys.argv):
        try:
            status = app(prog_name="frostline", standalone_mode=False)
        except UsageError as error:
            _refuse_usage(error)
        sys.exit(status if isinstance(status, int) else 0)


def _refuse_usage(error: Any) -> NoReturn:
    """A wrong command line, in the form of every other message."""
    if not sys.argv[1:]:
        error.show()  # the help: nothing was asked for
        sys.exit(BAD_INPUT)
    context = error.ctx
    command = context.command_path if context is not None else "frostline"
    message = str(error.format_message()).rstrip(".")
    raise ConfigError(
        message[:1].lower() + message[1:],
        where=f"command line: {shlex.join(['frostline', *sys.argv[1:]])}",
        possible=_usage(context),
        fix=f"see `{command} --help`",
    )


def _usage(context: Any) -> str:
    if context is None:
        return "see the help"
    if context.parent is None:
        return ", ".join(context.command.commands)
    options = [option for param in context.command.params for option in param.opts if option.startswith("--")]
    return f"{context.get_usage().removeprefix('Usage: ')}\noptions: {', '.join(options)}"
