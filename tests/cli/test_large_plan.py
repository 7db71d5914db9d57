"""`frostline plan` on a mixture of experts as separate linears, without weights, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = "from frostline.cli import console_script; console_script()"


@pytest.mark.parametrize("num_layers", [3, pytest.param(60, marks=pytest.mark.campaign)])
def test_a_mixture_of_experts_has_a_plan_without_weights(num_layers: int, tmp_path: Path) -> None:
    """Row 87: 60 layers of 256 experts are 46,080 linears beside the attention, on the meta device."""
    override = f"model.factory_arguments.num_layers={num_layers}"
    command = [sys.executable, "-c", COMMAND, "plan", "benchmarks/large_moe.yaml", override]
    wide = {**os.environ, "COLUMNS": "1000"}
    with (
        open(tmp_path / "screen", "w+", encoding="utf-8") as screen,
        subprocess.Popen(command, cwd=ROOT, stdout=screen, env=wide) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        screen.seek(0)
        lines = screen.read()
    assert process.returncode == 0
    num_linears = num_layers * (256 * 3 + 4)  # without the routers, which train in full, and the head
    assert f"model.layers.0-{num_layers - 1} ({num_layers} equal)" in lines
    assert "mlp.experts.0-255 (256 equal)" in lines
    assert f"target_modules all-linear ({num_linears} modules)" in lines
    assert usage.ru_maxrss < 1_500_000  # KiB
