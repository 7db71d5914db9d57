"""What a checkpoint says of itself, and whether its files are still the ones that were written.

Knows the file `manifest.json` and hashes; nothing of models or optimizers.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from frostline.checkpoint.atomic import write_file
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.json_file import read_json
from frostline.errors import CheckpointError

FILE_NAME = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        step: number of optimizer steps done.
        epoch: epochs done, with fraction.
        base: which base the trained part belongs to.
        plan_digest: digest of the plan that trained it.
        phase: phase of that plan in which the last step was done; 0 where it has none.
        is_best: whether this was the best checkpoint when it was written.
        adapter: name of the adapter, None in a run without adapters.
        method: config of the PEFT method, None without adapters.
        task_type: peft's task type, as the recipe gave it.
        files: size and sha256 of every other file, by path relative to the checkpoint.
        without_state: parameters in the optimizer that had no optimizer state.
        notes: what a reader should know, as parameters that peft cannot express.
        versions: python, torch, frostline, platform.
        num_threads: threads of torch on the CPU, on which bit-for-bit equality depends.
    """

    step: int
    base: BaseIdentity
    plan_digest: str
    phase: int = 0
    epoch: float | None = None
    is_best: bool = False
    adapter: str | None = None
    method: Mapping[str, Any] | None = None
    task_type: str | None = None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without_state: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())
    num_threads: int = field(default_factory=torch.get_num_threads)
    format_version: int = FORMAT_VERSION

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`, atomically."""
        write_file(directory / FILE_NAME, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read `manifest.json` of the checkpoint `directory`.

        Raises:
            CheckpointError: no manifest (not a complete checkpoint), unreadable, or of a later format.
        """
        path = directory / FILE_NAME
        if not path.is_file():
            raise CheckpointError(
                f"{directory.name} is not a complete checkpoint: it has no {FILE_NAME}",
                where=directory,
                possible="a folder checkpoints/step-N of a run",
                fix="name a folder that has one",
            )

        def parse(values: dict[str, Any]) -> Manifest:
            version = values["format_version"]
            if version > FORMAT_VERSION:
                raise CheckpointError(
                    f"the checkpoint has format version {version}",
                    where=path,
                    possible=f"up to {FORMAT_VERSION}",
                    fix="install a newer frostline",
                )
            _require_shape(values)
            values["base"] = BaseIdentity.from_dict(values["base"])
            values["without_state"] = tuple(values["without_state"])
            values["notes"] = tuple(values["notes"])
            return cls(**{key: value for key, value in values.items() if key in cls.__dataclass_fields__})

        return read_json(path, parse, otherwise=_without(directory))

    def verify_files(self, directory: Path, below: tuple[str, ...] = ("",)) -> None:
        """Raise unless the files in `directory` are byte for byte those that were written.

        Args:
            directory: the checkpoint.
            below: check only files whose relative path starts with one of these.

        Raises:
            CheckpointError: names each file that is missing, truncated or edited.
        """
        faults: list[str] = []
        for name, expected in self.files.items():
            path = directory / name
            if not name.startswith(below):
                continue
            if not path.is_file():
                faults.append(f"{name} is missing")
            elif path.stat().st_size != expected["bytes"]:
                faults.append(f"{name} has {path.stat().st_size} bytes, not {expected['bytes']}")
            elif sha256_of(path) != expected["sha256"]:
                faults.append(f"{name} was changed after it was written (another sha256)")
        if faults:
            raise CheckpointError(
                f"the checkpoint is damaged: {'; '.join(faults)}",
                where=directory,
                fix=f"restore the file, or {_without(directory)}",
                possible="files byte for byte as they were written",
            )


def _without(directory: Path) -> str:
    return f"delete {directory.name}/ to go on from the checkpoint before it"


def _require_shape(values: dict[str, Any]) -> None:
    """The types that the rest of Frostline relies on; raises ValueError."""
    for name, entry in values["files"].items():
        if not (isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)) or name.startswith("/"):
            raise ValueError(f"files: {name}")
    if not isinstance(values.setdefault("phase", 0), int):  # checkpoints of 0.1 do not have it
        raise ValueError(f"phase is {values['phase']!r}")
    for key, kind in {"step": int, "plan_digest": str, "is_best": bool, "versions": dict}.items():
        if not isinstance(values[key], kind):
            raise ValueError(f"{key} is {values[key]!r}")
    if not isinstance(values["epoch"], int | float | None):
        raise ValueError(f"epoch is {values['epoch']!r}")


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Size in bytes and sha256 of every file below `directory` but the manifest, by relative path."""
    return {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path != directory / FILE_NAME
    }


def sha256_of(path: Path) -> str:
    """Hex sha256 of the file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    try:
        own = metadata.version("frostline")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "unknown"
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "frostline": own,
        "platform": platform.platform(),
    }
