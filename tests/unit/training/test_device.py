"""A device that was asked for is used or refused."""

from __future__ import annotations

import pytest
import torch

from frostline.errors import ConfigError
from frostline.training.device import resolve_device


def test_cpu_is_always_there():
    assert resolve_device("cpu") == torch.device("cpu")


def test_auto_prefers_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda:0")


def test_a_device_number_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="'cuda:2' is not available"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:3", "mps", "tpu", "gpu"])
def test_a_missing_device_is_refused_and_the_present_ones_named(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=rf"device '{name}' is not available(.|\n)*possible: auto, cpu"):
        resolve_device(name)
