from __future__ import annotations

import gc
import subprocess
import sys

from frostline.integrations.hf_models.startup import importing_model_code, quick_imports


def test_garbage_collector_is_left_as_it_was() -> None:
    gc.enable()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_scipy_is_deferred_and_still_right() -> None:
    """In a process of its own: here scipy may be imported already."""
    script = """
import sys
from frostline.integrations.hf_models.startup import quick_imports
with quick_imports():
    from scipy.optimize import linear_sum_assignment
    import scipy.optimize as module
assert "scipy.optimize._lsap" not in sys.modules
rows, columns = linear_sum_assignment([[4, 1], [2, 8]])
assert columns.tolist() == [1, 0], columns
assert callable(module.minimize)
import scipy.optimize
assert scipy.optimize.minimize is module.minimize
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_model_code_is_there_after_the_body() -> None:
    with importing_model_code():
        pass
    assert "transformers.modeling_utils" in sys.modules
