from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frostline.checkpoint import BaseIdentity, Manifest, RunFolder
from frostline.errors import CheckpointError


def add(run: RunFolder, step: int, *, best: bool = False) -> Path:
    """A checkpoint with no content but its manifest and an adapter folder."""
    path = run.checkpoint_dir(step)
    (path / "adapter").mkdir(parents=True)
    Manifest(step=step, base=BaseIdentity(), plan_digest="0", is_best=best).write(path)
    return path


def test_new_makes_the_folder_and_refuses_one_with_content(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "a" / "run") as run:
        run.write_text("config.yaml", "x")
    with pytest.raises(CheckpointError, match=r"exists already(.|\n)*--resume goes on with it, --overwrite"):
        RunFolder.open(tmp_path / "a" / "run")


def test_new_takes_an_empty_folder(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        assert run.writable


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(CheckpointError, match="is a file"):
        RunFolder.open(tmp_path / "run", "overwrite")


@pytest.mark.parametrize("mode", ["overwrite", "resume"])
def test_a_folder_of_someone_else_is_never_touched(tmp_path: Path, mode: str) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"not made by frostline(.|\n)*thesis.tex"):
        RunFolder.open(tmp_path, mode)  # pyright: ignore[reportArgumentType]
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_overwrite_empties_an_earlier_run(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        add(run, 1)
        run.set_latest(run.checkpoint_dir(1))
    with RunFolder.open(tmp_path, "overwrite") as run:
        assert run.checkpoints() == []
        assert names(tmp_path) == [".earlier-run", ".lock"]


def test_resume_of_nothing_starts(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", "resume") as run:
        assert run.latest() is None


def test_a_second_writer_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    run = RunFolder.open(tmp_path)
    with pytest.raises(CheckpointError, match=rf"another process writes(.|\n)*process {os.getpid()}"):
        RunFolder.open(tmp_path, "resume")
    run.close()
    RunFolder.open(tmp_path, "resume").close()


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    code = "import sys,time\nfrom frostline.checkpoint.run_folder import RunFolder\n"
    code += "run = RunFolder.open(sys.argv[1]); print('locked', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(CheckpointError, match=f"process {holder.pid} on"):
            RunFolder.open(tmp_path, "resume")
    finally:
        holder.kill()
        holder.communicate()
    RunFolder.open(tmp_path, "resume").close()


def test_a_start_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    run = RunFolder.open(tmp_path / "runs" / "a")
    run.write_text("config.yaml", "x")
    assert run.discard_if_empty()
    assert list(tmp_path.iterdir()) == []


def test_discard_keeps_what_was_there_before(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run") as run:
        run.write_text("metrics.jsonl", "x")
    with RunFolder.open(tmp_path / "run", "resume") as run:
        assert not run.discard_if_empty()
    with RunFolder.open(tmp_path / "other") as run:
        add(run, 1)
        assert not run.discard_if_empty()
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def finished_run(path: Path) -> None:
    with RunFolder.open(path) as run:
        run.set_latest(add(run, 3))
        run.link_trained_part()
        run.write_text("config.yaml", "earlier")


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_an_earlier_run_is_overwritten_at_the_first_checkpoint_and_not_before(tmp_path: Path) -> None:
    finished_run(tmp_path)
    with RunFolder.open(tmp_path, "overwrite") as run:
        assert run.checkpoints() == []
        run.write_text("config.yaml", "new")
        assert (tmp_path / ".earlier-run" / "config.yaml").read_text() == "earlier"
        add(run, 1)
        run.prune(2)
    assert names(tmp_path) == [".lock", "checkpoints", "config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "new"


def test_an_earlier_run_is_put_back_when_the_start_fails(tmp_path: Path) -> None:
    finished_run(tmp_path)
    before = names(tmp_path)
    with RunFolder.open(tmp_path, "overwrite") as run:
        run.write_text("config.yaml", "new")
        (run.checkpoint_root / ".tmp-step-000001-1").mkdir(parents=True)
        assert not run.discard_if_empty()
    assert names(tmp_path) == before
    assert (tmp_path / "config.yaml").read_text() == "earlier"
    assert RunFolder.read(tmp_path).latest() == tmp_path / "checkpoints" / "step-000003"


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
@pytest.mark.parametrize("num_calls", range(8))
def test_a_kill_while_a_run_is_overwritten_loses_neither_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int, mode: Any
) -> None:
    """Stops before the n-th change of a name, with no clean-up, first on the way aside and then on the way back."""

    class Killed(BaseException):
        pass

    finished_run(tmp_path)
    original, calls = os.rename, []

    def rename(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) > num_calls:
            raise Killed
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        for _ in range(2):
            calls.clear()
            with suppress(Killed):
                RunFolder.open(tmp_path, "overwrite").close()
    with RunFolder.open(tmp_path, "resume") as run:
        assert run.latest() == tmp_path / "checkpoints" / "step-000003"
        assert names(tmp_path) == [".lock", "adapter", "checkpoints", "config.yaml"]
        assert (tmp_path / "config.yaml").read_text() == "earlier"
    with RunFolder.open(tmp_path, "overwrite") as run:
        add(run, 1)  # killed before the earlier run is deleted
    with RunFolder.open(tmp_path, mode) as run:
        assert (tmp_path / ".earlier-run").exists() == (mode == "overwrite")
        assert not (tmp_path / "config.yaml").exists()
        run.discard_if_empty()
    assert RunFolder.read(tmp_path).latest() == tmp_path / "checkpoints" / "step-000001"


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        add(run, 1_000_000)
        add(run, 20)
        run.checkpoint_dir(30).mkdir()
        (run.checkpoint_root / ".tmp-step-000040-1").mkdir()
        run.set_latest(run.checkpoint_dir(20))
        assert [path.name for path in run.checkpoints()] == ["step-000020", "step-1000000"]
        assert run.latest() == run.checkpoint_dir(1_000_000)


def test_prune_keeps_the_newest_and_the_best_and_sweeps_what_kills_left(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        for step in (1, 2, 3, 4):
            add(run, step, best=step in (1, 2))
        (run.checkpoint_root / ".tmp-step-000005-77" / "state").mkdir(parents=True)
        removed = run.prune(1)
        assert [path.name for path in removed] == ["step-000001", "step-000003"]
        assert sorted(item.name for item in run.checkpoint_root.iterdir()) == ["step-000002", "step-000004"]
        assert run.prune(0) == []


def test_resume_moves_links_that_a_kill_left_behind(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        run.set_latest(add(run, 1, best=True))
        run.set_best(run.checkpoint_dir(1))
        add(run, 2, best=True)
    with RunFolder.open(tmp_path, "resume") as run:
        assert os.readlink(run.checkpoint_root / "latest") == "step-000002"
        assert os.readlink(run.checkpoint_root / "best") == "step-000002"
        assert os.readlink(tmp_path / "adapter") == "checkpoints/best/adapter"
        assert (tmp_path / "adapter").is_dir()


def test_find_names_what_is_there(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        add(run, 7)
        run = RunFolder.read(tmp_path)
        assert not run.writable
        assert run.find() == run.find("step-7") == run.find("step-000007") == run.checkpoint_dir(7)
        with pytest.raises(CheckpointError, match=r"no checkpoint 'best'(.|\n)*latest, step-000007"):
            run.find("best")
        with pytest.raises(CheckpointError, match="no checkpoint 'step-8'"):
            run.find("step-8")


def test_reading_where_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run folder"):
        RunFolder.read(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is not a run folder"):
        RunFolder.read(tmp_path)


def test_opening_sweeps_what_kills_left(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        run.set_latest(add(run, 1))
        (run.checkpoint_root / ".tmp-removed-step-000021" / "state").mkdir(parents=True)
        (run.checkpoint_root / ".tmp-latest-77").symlink_to("step-000009")
        (tmp_path / ".tmp-config.yaml-77").write_text("half")
    with pytest.raises(CheckpointError, match="exists already"):
        RunFolder.open(tmp_path)
    assert (tmp_path / ".tmp-config.yaml-77").exists(), "refused: nothing changes"
    with RunFolder.open(tmp_path, "resume") as run:
        assert sorted(item.name for item in run.checkpoint_root.iterdir()) == ["latest", "step-000001"]
        assert not list(tmp_path.glob(".tmp-*"))


def test_a_broken_manifest_elsewhere_does_not_hide_the_best(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path) as run:
        run.set_best(add(run, 1, best=True))
        run.set_latest(add(run, 2))
        (run.checkpoint_dir(2) / "manifest.json").write_text("{")
        assert RunFolder.read(tmp_path).best() == run.checkpoint_dir(1)
        run.set_best(run.checkpoint_dir(2))
        with pytest.raises(CheckpointError, match=r"manifest.json is damaged(.|\n)*delete step-000002/"):
            RunFolder.read(tmp_path).best()
