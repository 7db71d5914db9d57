"""The base that an adapter names is one that peft's own loader finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from frostline.checkpoint import BaseIdentity, read_adapter


def test_an_adapter_of_a_run_names_a_folder_that_exists(launch: Any, bert_folder: Path, classify: Any) -> None:
    run = launch(classify(training={"max_steps": 1}))
    folder = next(path for path in (getattr(run, "folder", None), getattr(run, "path", None)) if path is not None)
    config = json.loads((Path(folder) / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert Path(config["base_model_name_or_path"]).samefile(bert_folder)
    base = read_adapter(Path(folder) / "adapter").base
    assert base is not None
    assert Path(str(base.folder)).samefile(bert_folder)


def test_a_folder_that_moved_is_the_same_base() -> None:
    here = BaseIdentity("x", fingerprint="sampled:1", folder="/a")
    here.check_same(BaseIdentity("x", fingerprint="sampled:1", folder="/b"), where="test")
