"""Answers where the files of a model are: a folder, a GGUF file, a Python package, or a repository on the Hub.

Imports nothing heavy and opens no file; what is inside the files is for `headers`, `build` and `load`.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from frostline.config.origin import Origin
from frostline.data.packages import PREFIX, find_in_package
from frostline.errors import ModelError

Kind = Literal["folder", "gguf", "hub", "factory"]
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?$")


@dataclass(frozen=True)
class ModelLocation:
    """Where a model lives.

    Attributes:
        name: what the user wrote; recorded as the identity of the base.
        kind: `folder`, `gguf` or `hub` (a package is one of the first two once found); `factory` for code that builds.
        path: the folder or the GGUF file; None for a Hub repository that is not on this machine yet.
        package: the Python package that holds it, if any.
        revision: branch, tag or commit on the Hub.
        origin: where the user wrote it, for messages.
    """

    name: str
    kind: Kind
    path: Path | None = None
    package: str | None = None
    revision: str | None = None
    origin: Origin | None = None

    @property
    def where(self) -> str:
        return str(self.origin) if self.origin is not None else "model.name_or_path"

    def at(self, path: Path) -> ModelLocation:
        """The same model, its files now being in the folder `path`."""
        return replace(self, kind="folder", path=path)


def resolve_location(name_or_path: str, origin: Origin | None = None, revision: str | None = None) -> ModelLocation:
    """Finds a model by what the user wrote; touches neither the network nor the files.

    Args:
        name_or_path: a folder, a `.gguf` file, `package:PKG/sub/folder`, or a Hub id `org/name`. A path that exists
            (relative to the current directory) wins over a Hub id.
        origin: place of the value in the config, for messages.
        revision: of a Hub repository.

    Raises:
        ModelError: nothing of this name is there, the package is not installed, or the text cannot be a Hub id.
    """
    asked = ModelLocation(name_or_path, "hub", revision=revision, origin=origin)
    if name_or_path.startswith(PREFIX):
        package, path = find_in_package(name_or_path, asked.where, ModelError)
        return _local(replace(asked, package=package, path=path))
    path = Path(name_or_path).expanduser()
    if path.exists():
        return _local(replace(asked, path=path))
    if _looks_like_path(name_or_path) or not _HUB_ID.match(name_or_path):
        raise ModelError(
            f"model folder or file {name_or_path!r} does not exist",
            where=asked.where,
            possible=_near(path) or "a folder, a .gguf file, package:PKG/sub/folder, or a Hub id such as org/name",
            fix=f"correct the path; a relative path starts at the current directory, {os.getcwd()}",
        )
    return asked


def _local(location: ModelLocation) -> ModelLocation:
    path = location.path
    assert path is not None
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return replace(location, kind="gguf")
        raise ModelError(
            f"model {location.name!r} is a file that is not GGUF",
            where=location.where,
            possible="a folder with config.json and *.safetensors, or a .gguf file",
            fix=f"give the folder instead: {path.parent}",
        )
    if (path / "config.json").is_file():
        return replace(location, kind="folder")
    quantized = sorted(path.glob("*.gguf"))
    if len(quantized) == 1:
        return replace(location, kind="gguf", path=quantized[0])
    raise ModelError(
        f"folder {location.name!r} holds no config.json"
        + (f" and {len(quantized)} GGUF files" if quantized else " and no GGUF file"),
        where=location.where,
        possible=", ".join(file.name for file in quantized)
        or _models_below(path)
        or "config.json beside *.safetensors, or one GGUF file",
        fix="name one of the files" if quantized else "give the folder that holds config.json and *.safetensors",
    )


def _models_below(path: Path) -> str | None:
    found = sorted(str(config.parent.relative_to(path)) for config in path.glob("*/config.json"))
    return f"folders inside it that hold a model: {', '.join(found[:5])}" if found else None


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith((".gguf", ".safetensors"))


def _near(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith((".", "__"))]
    near = difflib.get_close_matches(path.name, names, n=3)
    shown = near or sorted(names)[:5]
    return f"in {path.parent}: {', '.join(shown)}" if shown else None
