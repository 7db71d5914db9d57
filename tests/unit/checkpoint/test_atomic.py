from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from frostline.checkpoint.atomic import (
    disk_errors,
    publish_directory,
    publishing,
    recover_replaced,
    replace_link,
    replaced_name,
    standing,
    write_file,
)
from frostline.errors import CheckpointError


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_file(file, "old and long")
    write_file(file, "new")
    assert file.read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write_file(file, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"the disk is full: a.json(.|\n)*MB are free(.|\n)*--resume"):
        write_file(file, "new")
    assert file.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write a.json(.|\n)*No such file"):
        write_file(tmp_path / "missing" / "a.json", "x")


def test_publish_replaces_a_folder_of_the_same_name(tmp_path: Path) -> None:
    for name, text in (("final", "old"), ("aside", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(text)
    publish_directory(tmp_path / "aside", tmp_path / "final")
    assert (tmp_path / "final" / "f").read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["final"]


def test_a_kill_between_the_two_renames_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("final", "old"), ("aside", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(text)
    rename, calls = os.rename, []

    def second_rename_never_comes(old: Path, new: Path) -> None:
        calls.append(new)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", second_rename_never_comes)
    with pytest.raises(KeyboardInterrupt):
        publish_directory(tmp_path / "aside", tmp_path / "final")
    monkeypatch.undo()
    assert not (tmp_path / "final").exists()
    recover_replaced(tmp_path)
    assert (tmp_path / "final" / "f").read_text() == "old"


def test_links_move_in_one_step_and_never_replace_a_folder(tmp_path: Path) -> None:
    replace_link(tmp_path / "latest", "step-1")
    replace_link(tmp_path / "latest", "step-2")
    assert os.readlink(tmp_path / "latest") == "step-2"
    (tmp_path / "best").mkdir()
    with pytest.raises(CheckpointError, match="'best' is a file or folder, not a link"):
        replace_link(tmp_path / "best", "step-2")


def test_errors_that_are_not_about_the_disk_pass_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), disk_errors(tmp_path / "x"):
        _ = 1 // 0


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "er" / "final"

    def fail() -> None:
        with publishing(final) as folder:
            (folder / "f").write_text("x")
            assert not final.exists()
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir()), "folders made on the way are gone, too"
    with publishing(final) as folder:
        (folder / "f").write_text("x")
    assert (final / "f").read_text() == "x"
    assert [item.name for item in final.parent.iterdir()] == ["final"]


def test_what_a_killed_process_of_the_same_number_left_is_not_in_the_way(tmp_path: Path) -> None:
    stale = tmp_path / f".tmp-final-{os.getpid()}"
    stale.mkdir()
    (stale / "old").write_text("half")
    with publishing(tmp_path / "final") as folder:
        (folder / "f").write_text("x")
    assert [item.name for item in (tmp_path / "final").iterdir()] == ["f"]


def test_standing_is_aside_only_between_the_two_renames(tmp_path: Path) -> None:
    final = tmp_path / "final"
    assert standing(final) == final
    assert standing(Path()) == Path()
    assert standing(tmp_path / (300 * "x")) == tmp_path / (300 * "x")
    replaced_name(final).mkdir()
    assert standing(final) == replaced_name(final)
    final.mkdir()
    assert standing(final) == final
