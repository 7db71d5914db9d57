"""What the command line shows without a model: help, version, schema, and answers to wrong options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ("plan", "train", "evaluate", "predict", "export", "inspect", "schema")
HEAVY = ("torch", "transformers", "datasets", "pydantic", "ruamel", "numpy", "peft")


def test_help_lists_every_command_without_importing_anything_heavy(repository: Path) -> None:
    code = (
        "import sys, frostline.cli; sys.argv[1:] = ['--help']\n"
        "try: frostline.cli.main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print(sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f"\n  {command} " in ended.stdout
    imported = set(eval(ended.stderr))
    assert not imported & set(HEAVY)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(bench: Any, command: str) -> None:
    outcome = bench.run(command, "--help")
    assert outcome.status == 0
    assert outcome.out.startswith(f"Usage: frostline {command}")
    assert "--debug" in outcome.out


def test_no_arguments_show_the_help(bench: Any) -> None:
    outcome = bench.run()
    assert outcome.status == 2
    assert "Usage: frostline" in outcome.out + outcome.err


def test_version(bench: Any) -> None:
    from frostline import __version__

    outcome = bench.run("--version")
    assert (outcome.status, outcome.out) == (0, f"frostline {__version__}\n")


def test_schema_is_one_json_document_that_accepts_the_config_of_the_tests(bench: Any) -> None:
    outcome = bench.run("schema")
    assert outcome.status == 0
    schema = json.loads(outcome.out)
    assert set(bench.values()) <= set(schema["properties"])
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tarin", "c.yaml"), ("tarin", "train")),
        (("train",), ("CONFIG", "frostline train --help")),
        (("train", "c.yaml", "--resum"), ("--resum", "--resume")),
        (("train", "c.yaml", "--nproc-per-node", "2"), ("--nproc-per-node",)),
        (("plan", "c.yaml", "--data"), ("--data",)),
        (("plan", "c.yaml", "--data", "0"), ("--data", "0")),
        (("plan", "c.yaml", "--data", "many"), ("--data", "many")),
        (("export", "run", "out", "--to", "gguf"), ("gguf", "merged")),
        (("export", "run"), ("DIR",)),
        (("predict", "run", "--batch-size", "-1"), ("--batch-size", "-1")),
        (("schema", "extra"), ("extra",)),
        (("evaluate", "run", "extra"), ("extra",)),
        (("--verbose",), ("--verbose",)),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line(bench: Any, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    outcome = bench.refused(*args)
    assert outcome.out == ""
    for word in words:
        assert word in outcome.error


@pytest.mark.parametrize(
    "args",
    [
        ("train", "config.yaml", "--resume", "--overwrite"),
        ("train", "config.yaml", "--smoke", "--resume"),
        ("train", "config.yaml", "--smoke", "--overwrite"),
        ("train", "config.yaml", "--allow-plan-change"),
        ("plan", "config.yaml", "--json", "--data", "2"),
        ("plan", "config.yaml", "--json", "--html", "x.html"),
        ("plan", "config.yaml", "--diff", "config.yaml", "--html", "x.html"),
        ("plan", "config.yaml", "--diff", "config.yaml", "--devices", "tp=2"),
        ("plan", "config.yaml", "--html", "x.html", "--data", "2"),
        ("plan", "config.yaml", "--diff", "config.yaml", "--data", "2"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together(bench: Any, args: tuple[str, ...]) -> None:
    bench.config()
    assert bench.refused(*args).part("where") == "command line"
