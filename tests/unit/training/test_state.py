"""Where a run stands, and that it goes on only over the same examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from frostline.errors import CheckpointError
from frostline.training.state import TrainState, digest_of


def test_a_resume_on_other_examples_is_refused(tmp_path: Path) -> None:
    examples = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [3], "labels": 1}]
    turned = [{**example, "labels": 1 - example["labels"]} for example in examples]
    assert digest_of(examples, None) == digest_of([dict(example) for example in examples], [])
    assert digest_of(examples) != digest_of(turned)
    assert digest_of(examples[:1], examples[1:]) != digest_of(examples, [])
    saved = TrainState(1, 2, 2, digest_of(examples)).progress()
    TrainState(1, 2, 2, digest_of(examples)).restore(saved, tmp_path)
    with pytest.raises(CheckpointError, match="examples are not those that the checkpoint was trained on"):
        TrainState(1, 2, 2, digest_of(turned)).restore(saved, tmp_path)
