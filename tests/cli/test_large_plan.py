"""`frostline plan` on a mixture of experts as separate linears, without weights, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The peak is read inside: what the system tells of a child begins with the memory of the process that started it.
COMMAND = """
import os, pathlib, sys
from frostline.cli import console_script
record, leave = pathlib.Path(sys.argv.pop(1)), os._exit
def leave_with_record(status):
    record.write_text(pathlib.Path("/proc/self/status").read_text())
    leave(status)
os._exit = leave_with_record  # how the command ends, to save the time of tearing everything down
console_script()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("num_layers", [3, pytest.param(60, marks=pytest.mark.campaign)])
def test_a_mixture_of_experts_has_a_plan_without_weights(num_layers: int, tmp_path: Path) -> None:
    """Row 87: 60 layers of 256 experts are 46,080 linears beside the attention, on the meta device."""
    record = tmp_path / "status"
    override = f"model.factory_arguments.num_layers={num_layers}"
    command = [sys.executable, "-c", COMMAND, str(record), "plan", "benchmarks/large_moe.yaml", override]
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "COLUMNS": "1000"}, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = process.stdout
    assert process.returncode == 0
    num_linears = num_layers * (256 * 3 + 4)  # without the routers, which train in full, and the head
    assert f"model.layers.0-{num_layers - 1} ({num_layers} equal)" in lines
    assert "mlp.experts.0-255 (256 equal)" in lines
    assert f"target_modules all-linear ({num_linears} modules)" in lines
    peak = next(line.split()[1] for line in record.read_text().splitlines() if line.startswith("VmHWM"))
    assert int(peak) < 1_500_000  # KiB
