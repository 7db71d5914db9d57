"""`frostline inspect`: what a run, a checkpoint or an adapter folder holds, and with `check` whether it is whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from frostline.checkpoint import Manifest, RunFolder, read_adapter
from frostline.checkpoint.adapter_file import WEIGHTS as ADAPTER_WEIGHTS
from frostline.checkpoint.atomic import standing
from frostline.checkpoint.manifest import FILE_NAME as MANIFEST
from frostline.checkpoint.tensor_file import read_tensors
from frostline.checkpoint.trained_part import RECORD, read_trained
from frostline.checkpoint.trained_part import WEIGHTS as TRAINED_WEIGHTS
from frostline.errors import CheckpointError
from frostline.recipes.standing import unfinished
from frostline.trainability import show_rows


def describe(directory: Path, *, check: bool) -> str:
    """The text to print for `directory`.

    Raises:
        CheckpointError: it is none of the three, or `check` found damage.
    """
    directory = standing(directory)
    if (directory / "checkpoints").is_dir():
        return _describe_run(directory, check)
    if (directory / MANIFEST).is_file():
        return "\n".join(_describe_checkpoint(directory, check))
    if (directory / "adapter_config.json").is_file():
        return "\n".join(_describe_adapter(directory, check))
    if (directory / RECORD).is_file():
        return "\n".join(_describe_trained(directory, check))
    raise CheckpointError(
        f"{directory} holds nothing that Frostline knows" if directory.exists() else f"there is no folder {directory}",
        where=directory,
        possible="a run folder, a folder checkpoints/step-N, an adapter folder, or a folder trained/",
        fix="give one of these",
    )


def _describe_run(directory: Path, check: bool) -> str:
    run = RunFolder.read(directory)
    best = run.best()
    lines = [f"run        {directory}"]
    for path in run.checkpoints():
        manifest = Manifest.read(path)
        marks = [word for word, target in (("latest", run.latest()), ("best", best)) if target == path]
        size = sum(int(entry["bytes"]) for entry in manifest.files.values())
        line = f"           {path.name}  epoch {manifest.epoch or 0:.3g}  {size:,} bytes  {', '.join(marks)}"
        lines.append(line.rstrip())
        if check:
            _describe_checkpoint(path, check=True)  # for its checks
    standing_at = unfinished(run)
    if standing_at is not None:
        lines.append(f"           {standing_at}")
    newest = best or run.latest()
    if newest is None:
        lines.append("           no complete checkpoint yet")
        return "\n".join(lines)
    if check:
        lines.append("check      every file of every checkpoint is as written, every value finite")
    return "\n".join([*lines, "", *_describe_checkpoint(newest, check=False)])


def _describe_checkpoint(directory: Path, check: bool) -> list[str]:
    manifest = Manifest.read(directory)
    if check:
        manifest.verify_files(directory)
    base = manifest.base
    identity = f"{base.dtype or 'dtype unknown'}, {base.fingerprint or 'no fingerprint'}"
    lines = [
        f"checkpoint {directory}",
        f"step       {manifest.step}",
        f"base       {base.name_or_path or 'handed in'} ({identity})",
        f"plan       {manifest.plan_digest[:8]}" + (f", phase {manifest.phase}" if manifest.phase else ""),
        f"size       {_describe_size(manifest.files)}",
        f"made with  {', '.join(f'{name} {version}' for name, version in sorted(manifest.versions.items()))}",
    ]
    lines += [f"note       {note}" for note in manifest.notes]
    if (directory / "adapter").is_dir():
        lines += _describe_adapter(directory / "adapter", check)
    if (directory / "trained").is_dir():
        lines += _describe_trained(directory / "trained", check)
    if check:
        for file in sorted((directory / "state").rglob("*.safetensors")):
            _describe_tensors("state", read_tensors(file), file, check)  # for its check
        lines.append("check      every file is as written, every value of the optimizer's state is finite")
    return lines


def _describe_size(files: Mapping[str, Mapping[str, Any]]) -> str:
    """`1,234 bytes: trained part 200, optimizer 400, everything else 634`; the rest is tokenizer and records."""
    sizes = {"trained part": 0, "optimizer": 0, "everything else": 0}
    for name, entry in files.items():
        is_part = name.startswith(("adapter/", "trained/")) and name.endswith(".safetensors")
        part = "trained part" if is_part else "optimizer" if name.startswith("state/optimizer") else "everything else"
        sizes[part] += int(entry["bytes"])
    return f"{sum(sizes.values()):,} bytes: " + ", ".join(f"{part} {size:,}" for part, size in sizes.items())


def _describe_adapter(directory: Path, check: bool) -> list[str]:
    file = read_adapter(directory)
    config = file.config
    targets = ", ".join(file.targets[:3]) + (", ..." if len(file.targets) > 3 else "")
    return [
        f"adapter    LoRA rank {config['r']}, alpha {config['lora_alpha']}, dropout {config.get('lora_dropout', 0)}"
        + (", rank-stabilized" if config.get("use_rslora") else ""),
        f"targets    {len(file.targets)} modules: {targets}",
        f"in full    {', '.join(file.trained_in_full) or 'nothing'}",
        *_describe_rows(file.rows),
        *_describe_tensors("tensors", dict(file.tensors), directory / ADAPTER_WEIGHTS, check),
    ]


def _describe_trained(directory: Path, check: bool) -> list[str]:
    file = read_trained(directory)
    rows = {path.rpartition(".")[0]: indices for path, indices in file.rows.items()}
    return _describe_rows(rows) + _describe_tensors("trained", dict(file.tensors), directory / TRAINED_WEIGHTS, check)


def _describe_rows(rows: Mapping[str, tuple[int, ...]]) -> list[str]:
    return [f"rows       {show_rows(indices)} of {path or 'the root'}" for path, indices in rows.items()]


def _describe_tensors(label: str, tensors: dict[str, torch.Tensor], file: Path, check: bool) -> list[str]:
    """`check` adds that every value is finite, or raises."""
    broken = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    if check and broken:
        raise CheckpointError(
            f"{len(broken)} tensors hold values that are not finite: {', '.join(broken[:4])}",
            where=file,
            possible="finite numbers",
            fix="use another checkpoint",
        )
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    finite = ["check      every value is finite"] if check else []
    return [f"{label:<11}{len(tensors)} tensors, {num_bytes:,} bytes, {', '.join(dtypes)}", *finite]
