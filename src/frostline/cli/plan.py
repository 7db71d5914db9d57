"""`frostline plan`: the screen, JSON, the page, and the comparison with another plan. No decisions live here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from frostline.checkpoint.atomic import write_file
from frostline.checkpoint.json_file import read_json
from frostline.errors import ConfigError
from frostline.recipes import runs
from frostline.recipes.config_checks import read_config
from frostline.trainability import diff_plans, fold_differences
from frostline.trainability.screen.page import PAGE_MARK
from frostline.trainability.screen.report import summary_lines

if TYPE_CHECKING:
    from frostline.trainability import Forecast

_SIZES = ("dp_replicate", "dp_shard", "tp")
_MAX_DIGITS = 7  # more devices than any machine has; a slip of the finger, and Python reads no number of 5,000 digits


def parse_devices(text: str) -> dict[str, int]:
    """`dp_shard=8,tp=2` as arguments of `PlannedRun.forecast`.

    Raises:
        ConfigError: another key, a key twice, or no whole number of at least 1.
    """
    sizes: dict[str, int] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        is_twice = f"{key}_size" in sizes
        is_number = value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS and int(value) >= 1
        if key not in _SIZES or is_twice or not is_number:
            raise ConfigError(
                f"`{key}` is given twice" if is_twice else f"cannot read {item.strip()!r}",
                where=f"command line: --devices {text}",
                possible="KEY=NUMBER, separated by commas; the keys are dp_replicate (DDP), dp_shard (FSDP2) and tp "
                "(tensor parallel), the numbers whole, from 1 to 9999999",
                fix="write for example --devices dp_shard=8,tp=2",
            )
        sizes[f"{key}_size"] = int(value)
    return sizes


def require_page(file: Path) -> None:
    """Before anything slow: `file` can be written, and nothing that is no plan page is lost.

    Raises:
        ConfigError: a folder, a missing or unwritable folder above it, or a file that is something else.
    """
    if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(
            f"cannot write a page to {file}" + (", which is a folder" if file.is_dir() else ""),
            where="command line: --html",
            possible="a file in a folder that exists and can be written",
            fix="correct the path, or make the folder",
        )
    if (file.exists() or file.is_symlink()) and not _is_page(file):
        raise ConfigError(
            f"the file {file} exists and is no page of `frostline plan`",
            where="command line: --html",
            possible="a file that is not there yet, or an earlier page, which is replaced",
            fix="give another name, or move the file away",
        )


def _is_page(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return PAGE_MARK.encode() in stream.read(2_000)


def other_plan(other: Path, overrides: Sequence[str], say: runs.Say) -> Mapping[str, Any]:
    """The plan of `other` as JSON: of a config (resolved with the same overrides), a run folder, or a `plan.json`.

    Raises:
        ConfigError: there is nothing at `other`, or the folder is no run. CheckpointError: the file is no plan.
    """
    file = other / runs.PLAN_FILE if other.is_dir() else other
    if other.is_dir() and not file.is_file():
        raise ConfigError(
            f"{other} is a folder without {runs.PLAN_FILE}",
            where="command line: --diff",
            possible="a config file, a run folder, or the plan.json of one",
            fix="give one of these",
        )
    if file.suffix != ".json" or not file.exists():
        return runs.plan_run(read_config(other, overrides), encode=False, say=say).plan.to_json()
    return read_json(file, _plan_of, otherwise="give a config file or a run folder")


def _plan_of(record: dict[str, Any]) -> dict[str, Any]:
    if "trained" in record and "parameters" not in record:
        raise ValueError(
            "it is a checkpoint's record of what trains, without what is frozen; the run folder has the plan"
        )
    if record["format_version"] != 1:
        raise ValueError(f"its format_version is {record['format_version']!r}, and this version reads 1")
    parameters: object = record["parameters"]
    if not isinstance(parameters, dict):
        raise ValueError("its `parameters` are no mapping")
    for path, entry in cast(dict[str, object], parameters).items():
        if not isinstance(entry, dict) or not {"trains", "rule", "shape"} <= cast(dict[str, object], entry).keys():
            raise ValueError(f"the parameter {path} has no `trains`, `rule` or `shape`")
    str(record["digest"])
    return record


def comparison(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, as_json: bool) -> str:
    """What to print for `--diff`: one line for each set of parameters that are decided differently."""
    differences = fold_differences(diff_plans(ours, theirs), (*ours["parameters"], *theirs["parameters"]))
    if as_json:
        record = {
            "format_version": 1,
            "same": not differences,
            "digest": ours["digest"],
            "other_digest": theirs["digest"],
            "differences": [
                {
                    "sign": line.sign,
                    **({} if line.phase is None else {"phase": line.phase}),
                    "path": line.path,
                    "num_parameters": line.count,
                    "what": line.what,
                }
                for line in differences
            ],
        }
        return json.dumps(record, indent=1)
    if differences:
        return "\n".join(map(str, differences))
    return f"the same parameters train ({ours['digest'][:8]})"


def as_json(planned: runs.PlannedRun, devices: Forecast | None) -> str:
    """What to print for `--json`."""
    notes, _ = summary_lines(planned.plan, planned.facts, memory=planned.memory, devices=devices)
    record = {
        **planned.plan.to_json(),
        "notes": notes,
        "memory": planned.memory.to_json(),
        **({"devices": devices.to_json()} if devices is not None else {}),
        "facts": {key: text for key, text in planned.facts.items() if key.partition(" ")[0] != "note"},
    }
    return json.dumps(record, indent=1)


def write_page(planned: runs.PlannedRun, devices: Forecast | None, file: Path) -> None:
    """Write the page of `planned` to `file` in one step.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written.
    """
    model = planned.loaded.config.model
    title = model.name_or_path or model.factory or "model"
    write_file(file, planned.plan.to_html(planned.facts, title=title, memory=planned.memory, devices=devices))
