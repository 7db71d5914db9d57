"""`requires_grad` is written in one place, and freezing leaves no stale gradient behind."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from frostline.tree import set_trainable


def test_freezing_drops_the_gradient_and_thawing_keeps_it() -> None:
    param = nn.Parameter(torch.ones(2))
    param.sum().backward()
    set_trainable(param, True)
    assert param.grad is not None
    set_trainable(param, False)
    assert param.grad is None
    assert not param.requires_grad
    set_trainable(param, True)
    assert param.requires_grad


def test_an_already_frozen_parameter_loses_a_stale_gradient() -> None:
    param = nn.Parameter(torch.ones(2), requires_grad=False)
    param.grad = torch.ones(2)
    set_trainable(param, False)
    assert param.grad is None


def test_requires_grad_is_written_nowhere_else(repository: Path) -> None:
    writes = re.compile(r"\.requires_grad_\(|\.requires_grad\s*=[^=]|requires_grad\s*=\s*(True|False)\b")
    writers = {
        path.relative_to(repository).as_posix()
        for path in (repository / "src").rglob("*.py")
        if writes.search(path.read_text(encoding="utf-8"))
    }
    assert writers == {"src/frostline/tree/flags.py"}
