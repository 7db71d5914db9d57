"""What holds for every test: no network, and nothing that one test changes reaches the next.

Torch is only looked at when a test has already imported it, so that light tests stay light.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# Set before anything imports transformers, datasets or matplotlib: they read these once, at import.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
# Converted models and data sets are cached across runs of the tests, apart from the user's own cache.
os.environ["XDG_CACHE_HOME"] = str(REPOSITORY / ".cache" / "tests")

# The same examples in every `make test`, so that it fails for what was changed alone; `make test-full` seeks new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what a machine could not test: a skip is one letter among thousands."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/browser" in report.nodeid]
    if skipped:
        reason = str(skipped[0].longrepr[-1] if isinstance(skipped[0].longrepr, tuple | list) else skipped[0].longrepr)
        terminalreporter.section("NOT TESTED", sep="!", yellow=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests of the page of a plan did not run. {reason}")
        terminalreporter.line("Install one (Debian: apt-get install chromium), or name it in FROSTLINE_CHROMIUM.")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the checkout."""
    return REPOSITORY


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Environment variables and the current directory are as they were."""
    variables, directory = dict(os.environ), Path.cwd()
    yield
    os.chdir(directory)
    if dict(os.environ) != variables:
        os.environ.clear()
        os.environ.update(variables)


@pytest.fixture(autouse=True)
def restored_random_state() -> Iterator[None]:
    """Python's, numpy's and torch's global generators are as they were."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch else None
    yield
    random.setstate(python_state)
    if numpy:
        numpy.random.set_state(numpy_state)
    if torch:
        torch.set_rng_state(torch_state)


@pytest.fixture(autouse=True)
def restored_torch_settings() -> Iterator[None]:
    """Thread count, default dtype, grad mode and determinism are as they were."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    grad, device = torch.is_grad_enabled(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@pytest.fixture(autouse=True)
def no_leaked_process_group() -> Iterator[None]:
    """A test that leaves a process group open fails itself, not the next one."""
    yield
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    torch.distributed.destroy_process_group()
    pytest.fail("the test left a torch.distributed process group open")
