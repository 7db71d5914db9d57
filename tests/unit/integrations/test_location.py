from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frostline.config.origin import Origin
from frostline.errors import ModelError
from frostline.integrations.hf_models import resolve_location


def test_folder_with_config(bert_folder: Path) -> None:
    location = resolve_location(str(bert_folder))
    assert (location.kind, location.path) == ("folder", bert_folder)


def test_relative_path_starts_at_the_current_directory(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bert_folder.parent)
    assert resolve_location(bert_folder.name).kind == "folder"


def test_folder_with_one_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    location = resolve_location(str(tmp_path))
    assert (location.kind, location.path) == ("gguf", tmp_path / "model.gguf")


def test_folder_with_two_gguf_files_asks_which(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"2 GGUF files(.|\n)*a\.gguf, b\.gguf(.|\n)*name one"):
        resolve_location(str(tmp_path))


def test_folder_above_the_model_names_the_folders_inside(bert_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json(.|\n)*tiny-bert"):
        resolve_location(str(bert_folder.parent))


def test_hub_id_is_not_looked_up_yet() -> None:
    location = resolve_location("org/name", revision="main")
    assert (location.kind, location.path, location.revision) == ("hub", None, "main")


def test_missing_path_shows_the_nearest_name_and_where_it_was_written(bert_folder: Path) -> None:
    origin = Origin("model", "run.yaml", 3)
    with pytest.raises(ModelError, match=r"does not exist\n +where: +run\.yaml, line 3: model\n.*tiny-bert"):
        resolve_location(str(bert_folder.parent / "tiny-bart"), origin)


def test_file_that_is_no_model(bert_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"not GGUF(.|\n)*give the folder instead"):
        resolve_location(str(bert_folder / "config.json"))


@pytest.fixture
def package(tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "frostline_test_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "model").symlink_to(bert_folder)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_package_is_found_without_importing_it(package: str) -> None:
    location = resolve_location(f"package:{package}/model")
    assert (location.kind, location.package) == ("folder", package)
    assert package not in sys.modules


def test_package_without_that_folder(package: str) -> None:
    with pytest.raises(ModelError, match=r"has no 'modell'\n(.|\n)*in .*: model"):
        resolve_location(f"package:{package}/modell")


def test_package_path_that_leaves_the_package(package: str) -> None:
    with pytest.raises(ModelError, match=r"leaves the package\n(.|\n)*a path inside(.|\n)*remove `\.\.`"):
        resolve_location(f"package:{package}/../tiny-bert")


def test_every_folder_of_a_namespace_package_is_looked_through(
    tmp_path: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "frostline_test_namespace").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / name))
    inside = tmp_path / "one" / "frostline_test_namespace" / "model"
    inside.symlink_to(bert_folder)
    assert resolve_location("package:frostline_test_namespace/model").path == inside


def test_package_that_is_not_installed() -> None:
    with pytest.raises(
        ModelError, match=r"'no_such_package'.* is not installed(.|\n)*import name of an installed(.|\n)*correct"
    ):
        resolve_location("package:no_such_package/model")


def test_package_name_that_is_none() -> None:
    with pytest.raises(ModelError, match="names no Python package"):
        resolve_location("package:a-b/model")
