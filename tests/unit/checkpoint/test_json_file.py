from __future__ import annotations

from pathlib import Path

import pytest

from frostline.checkpoint.json_file import read_json
from frostline.errors import CheckpointError


def test_what_parse_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json", lambda values: values["a"] + 1) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged: Expecting value"),
        (b"[]", "damaged: no mapping at the top"),
        (b"{}", "damaged: it has no 'a'"),
        (b'{"a": null}', "damaged: .*NoneType"),
        (b'{"a": "\xff"}', "damaged: 'utf-8'"),
        (b'{"a": ' + 100_000 * b"[", "damaged: "),
    ],
)
def test_damage_is_named_in_four_parts(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"a\.json is {message}(.|\n)*where:(.|\n)*possible:(.|\n)*do:"):
        read_json(tmp_path / "a.json", lambda values: values["a"] + 1)


def test_a_file_that_is_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.json is missing(.|\n)*do:"):
        read_json(tmp_path / "a.json", dict)
    (tmp_path / "a.json").mkdir()
    with pytest.raises(CheckpointError, match=r"a\.json cannot be read: Is a directory(.|\n)*do:"):
        read_json(tmp_path / "a.json", dict)


def test_an_error_of_its_own_passes_through(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")

    def refuse(values: object) -> None:
        raise CheckpointError("of a later version", where="a.json", possible="an older one", fix="upgrade")

    with pytest.raises(CheckpointError, match=r"^of a later version\n"):
        read_json(tmp_path / "a.json", refuse)
