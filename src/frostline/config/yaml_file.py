"""A YAML 1.2 file -> plain data with the line of every value, and plain data -> YAML text.

Answers what stands in the file and where; must not know which keys a config has.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

from frostline.config.origin import Origin, Origins
from frostline.config.yaml_tree import parse_yaml
from frostline.errors import ConfigError

_MINIMAL = "recipe: sequence_classification\nmodel: MODEL\ndata: {train: FILE}"


class _Representer(RoundTripRepresenter):
    """Writes null as a word, for nothing at all behind a key looks like a slip; escapes odd characters."""

    def represent_none(self, data: None) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")

    def represent_text(self, data: str) -> Any:
        odd = not data.replace("\n", "").isprintable()  # ruamel.yaml writes U+0085 and its like plainly
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)


_Representer.add_representer(type(None), _Representer.represent_none)
_Representer.add_representer(str, _Representer.represent_text)


@dataclass(frozen=True)
class YamlDocument:
    """Plain data (dict, list, str, int, float, bool, None; mapping keys are text) and where each value stands."""

    data: dict[str, Any]
    origins: Origins


def load_yaml(path: str | PathLike[str]) -> YamlDocument:
    """Reads one YAML 1.2 file whose top level is a mapping. Messages name the file as given.

    Raises:
        ConfigError: no such file, not UTF-8, empty, a syntax error, duplicate keys, an alias without anchor, or a top
            level that is no mapping.
    """
    file = str(path)
    data, lines = parse_yaml(_read_text(Path(path), file), file)
    if data is None:
        raise ConfigError(
            "the config file is empty",
            where=file,
            possible="at least a recipe, a model and data",
            fix=f"start with\n{_MINIMAL}",
        )
    if not isinstance(data, dict):
        shape = "a list" if isinstance(data, list) else f"the value {data!r}"
        raise ConfigError(
            f"the top level of the config is {shape}",
            where=Origin("", file, 1),
            possible="a mapping of `key: value` lines",
            fix=f"write\n{_MINIMAL}",
        )
    return YamlDocument(data, Origins(file, lines))


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML text that `load_yaml` reads back as equal `data`; keys keep their order."""
    yaml = YAML(typ="rt", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.width = 1 << 20  # never fold: a folded line is harder to search for
    stream = io.StringIO()
    yaml.dump(dict(data), stream)
    return stream.getvalue()


def _read_text(path: Path, file: str) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"no such config file: {file}",
            where=f"looked in {path.parent.resolve()}",
            possible=_files_nearby(path),
            fix="correct the path, or change to the folder it starts from",
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a folder, not a config file",
            where=file,
            possible=_yaml_files(path),
            fix="name the YAML file inside it",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read the config file {file}: {error.strerror}",
            where=file,
            fix="make the file readable",
            possible="a file that can be read",
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"byte 0x{raw[error.start]:02X} (offset {error.start}) is not UTF-8",
            where=Origin("", file, line),
            possible="configs are UTF-8 text",
            fix="save the file as UTF-8 in your editor",
        ) from None


def _files_nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    nearest = difflib.get_close_matches(path.name, names, n=2, cutoff=0.75)
    if nearest:
        return "did you mean " + " or ".join(str(path.parent / name) for name in nearest) + "?"
    return _yaml_files(path.parent)


def _yaml_files(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))
    if not names:
        return "the folder holds no YAML files"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return "YAML files there: " + ", ".join(names[:5]) + more
