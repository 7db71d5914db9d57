"""The fixtures of conftest.py do restore: each test checks what the one before it left behind."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

CONFTEST = Path(__file__).with_name("conftest.py")
STATE: dict[str, object] = {}


def test_1_a_test_changes_everything(tmp_path: Path) -> None:
    STATE.update(
        directory=Path.cwd(),
        environment=dict(os.environ),
        python=random.getstate(),
        torch=torch.get_rng_state(),
        threads=torch.get_num_threads(),
    )
    os.chdir(tmp_path)
    os.environ["FROSTLINE_HYGIENE"] = "1"
    del os.environ["HF_HUB_OFFLINE"]
    random.seed(5)
    torch.manual_seed(5)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)


def test_2_the_next_one_sees_none_of_it() -> None:
    if not STATE:
        pytest.skip("only means something after test_1")
    assert Path.cwd() == STATE["directory"]
    # PYTEST_CURRENT_TEST differs from test to test by pytest's own doing.
    ignored = "PYTEST_CURRENT_TEST"
    before = {key: value for key, value in STATE["environment"].items() if key != ignored}  # type: ignore[attr-defined]
    assert {key: value for key, value in os.environ.items() if key != ignored} == before
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert random.getstate() == STATE["python"]
    assert torch.equal(torch.get_rng_state(), STATE["torch"])  # type: ignore[arg-type]
    assert torch.get_num_threads() == STATE["threads"]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_3_a_leaked_process_group_fails_the_test_that_leaks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile(
        """
        import torch.distributed

        def test_leaks(tmp_path):
            torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

        def test_after():
            assert not torch.distributed.is_initialized()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*left a torch.distributed process group open*"])
