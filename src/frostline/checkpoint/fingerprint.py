"""Is this the same base? A hash over the tensors of the base, and the identity that a checkpoint keeps of it.

The hash depends on tensor names, dtypes, shapes and bytes; not on folder names or on how the tensors are split into
files. Knows nothing of runs, plans or adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from frostline.checkpoint.base_config import config_changes
from frostline.checkpoint.safetensors_header import StoredTensor, read_header
from frostline.errors import CheckpointError, Place
from frostline.tree import canonical_named_parameters

_BLOCK_BYTES = 16 * 1024
_NUM_BLOCKS = 8


@dataclass(frozen=True)
class BaseIdentity:
    """Which base a trained part belongs to.

    Attributes:
        name_or_path: hub id or folder, as the config gave it. Not compared: folders move.
        revision: revision of a hub id.
        fingerprint: from `fingerprint_files` or `fingerprint_model`; None where there is nothing to hash.
        dtype: dtype that the base was loaded in, as `"float32"`.
        quantization: name of the quantization, if any.
        folder: where the files lie on this machine, if it is a folder that transformers loads: peft's config names it,
            because peft does not know our `package:` names. Not compared either.
        config: from `read_base_config`; None where it is not known, as in records of earlier versions.
    """

    name_or_path: str | None = None
    revision: str | None = None
    fingerprint: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    folder: str | None = None
    config: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> BaseIdentity:
        """Back from `to_dict`; keys of later versions are left out.

        Raises:
            ValueError: that did not come from `to_dict`.
        """
        if not isinstance(values, dict):
            raise ValueError(f"base is {values!r}")
        entries = cast("dict[str, Any]", values)
        known = {key: value for key, value in entries.items() if key in cls.__dataclass_fields__}
        for key, value in known.items():
            if value is not None and not isinstance(value, dict if key == "config" else str):
                raise ValueError(f"base: {key} is {value!r}")
        return cls(**known)

    @property
    def fingerprint_kind(self) -> str | None:
        """What the fingerprint was made of: `sampled` or `full` of files, `model-sampled` or `model-full` of values."""
        return None if self.fingerprint is None else self.fingerprint.rpartition(":")[0]

    def check_same(self, given: BaseIdentity, *, where: Place) -> None:
        """Raise unless `given` (the base in memory) is the one that `self` (in the checkpoint) names.

        Raises:
            CheckpointError: other weights, another config or quantization, or fingerprints of two kinds, which tell
                nothing.
        """
        kinds = self.fingerprint_kind, given.fingerprint_kind
        if None not in kinds and kinds[0] != kinds[1]:
            raise CheckpointError(
                f"the base cannot be compared: the checkpoint knows it by a fingerprint of the kind {kinds[0]}, "
                f"the one given is of the kind {kinds[1]}",
                where=where,
                possible="sampled and full are of the weight files, model-sampled and model-full of values in memory",
                fix=f"give a fingerprint of the kind {kinds[0]}",
            )
        for attribute, meaning in (("fingerprint", "other weights"), ("quantization", "another quantization")):
            mine, theirs = getattr(self, attribute), getattr(given, attribute)
            if mine != theirs and (attribute == "quantization" or None not in (mine, theirs)):
                raise CheckpointError(
                    f"the checkpoint belongs to another base: {given.name_or_path or 'the model given'} has {meaning} "
                    f"({attribute} {_short(theirs)})",
                    where=where,
                    possible=f"{self.name_or_path or 'a model given in Python'}"
                    + (f" at revision {self.revision}" if self.revision else "")
                    + f" ({attribute} {_short(mine)})",
                    fix="load the base that the run was trained on",
                )
        if self.config is None or given.config is None:
            return
        if changes := config_changes(self.config, given.config):
            raise CheckpointError(
                f"the checkpoint belongs to another base: {given.name_or_path or 'the model given'} has another "
                f"config: {', '.join(f'{key} is {_short(now)}' for key, _, now in changes[:4])}",
                where=where,
                possible=", ".join(f"{key} {_short(then)}" for key, then, _ in changes[:4]) + ", as it was trained",
                fix="restore config.json of the base, or load the base that the run was trained on",
            )


def _short(value: str | None) -> str:
    return "none" if value is None else (value if len(value) <= 24 else value[:24] + "...")


def fingerprint_files(paths: Iterable[Path], *, full: bool = False) -> str:
    """Hash of the tensors in `paths`.

    Args:
        paths: the weight files of the base. Safetensors are hashed by tensor, so that splitting does not matter;
            other files (GGUF) as bytes.
        full: read every byte; otherwise the headers and sampled blocks of each tensor (a fraction of a second for
            any size).

    Raises:
        CheckpointError: no file given, or a file that is damaged.
    """
    digests: list[bytes] = []
    paths = list(paths)
    if not paths:
        raise CheckpointError(
            "there is no base file to fingerprint",
            fix="give the weight files of the base",
            where="the base",
            possible="safetensors or GGUF files",
        )
    for path in paths:
        with open(path, "rb") as stream:
            if path.suffix == ".safetensors":
                digests += [_hash_tensor(stream, tensor, full) for tensor in _tensors_of(path)]
            else:
                size = path.stat().st_size
                digests.append(_hash_tensor(stream, StoredTensor(f"file of {size} bytes", "", (), 0, size), full))
    return _combine("full" if full else "sampled", digests)


def fingerprint_model(
    model: torch.nn.Module,
    paths: Iterable[str] | None = None,
    *,
    full: bool = False,
    instead: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """Hash of parameters in memory, for a base that was handed in as an object.

    Args:
        model: on any device but meta.
        paths: canonical paths of the base's parameters (without new ones and adapters); None takes all.
        full: hash every byte instead of sampled blocks.
        instead: values by path that stand for those in the model, such as weights that a merge has put aside.

    Raises:
        CheckpointError: a parameter has no values (meta device), or a path is not in the model.
    """
    parameters = dict(canonical_named_parameters(model))
    digests: list[bytes] = []
    for path in sorted(parameters if paths is None else set(paths)):
        if path not in parameters:
            raise CheckpointError(
                f"cannot fingerprint {path!r}: the model has no such parameter",
                where=path,
                possible=f"{len(parameters)} parameters, {next(iter(parameters), None)} among them",
                fix="give paths of this model",
            )
        tensor = (instead or {}).get(path, parameters[path]).detach()
        if tensor.is_meta:
            raise CheckpointError(
                f"cannot fingerprint {path!r}: it has no values yet (meta device)",
                fix="load the weights first",
                where=path,
                possible="parameters with values",
            )
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
        head = hashlib.sha256(json.dumps([path, str(tensor.dtype), list(tensor.shape)]).encode())
        for start, stop in _blocks(data.numel(), full):
            head.update(data[start:stop].cpu().numpy().tobytes())
        digests.append(head.digest())
    return _combine("model-full" if full else "model-sampled", digests)


def _tensors_of(path: Path) -> list[StoredTensor]:
    try:
        return read_header(path)
    except ValueError as error:
        raise CheckpointError(
            f"{path.name} is not a whole safetensors file: {error}",
            where=path,
            fix="fetch the base again",
            possible="the file as it was published",
        ) from None


def _hash_tensor(stream: BinaryIO, tensor: StoredTensor, full: bool) -> bytes:
    digest = hashlib.sha256(json.dumps([tensor.name, tensor.dtype, list(tensor.shape)]).encode())
    for start, stop in _blocks(tensor.stop - tensor.start, full):
        stream.seek(tensor.start + start)
        digest.update(stream.read(stop - start))
    return digest.digest()


def _blocks(num_bytes: int, full: bool) -> Iterator[tuple[int, int]]:
    """Byte ranges to hash: all of a small tensor; of a large one evenly spaced blocks, first and last included."""
    if full or num_bytes <= _NUM_BLOCKS * _BLOCK_BYTES:
        step = 8 * 1024 * 1024
        yield from ((start, min(start + step, num_bytes)) for start in range(0, num_bytes, step))
        return
    for index in range(_NUM_BLOCKS):
        start = (num_bytes - _BLOCK_BYTES) * index // (_NUM_BLOCKS - 1)
        yield start, start + _BLOCK_BYTES


def _combine(kind: str, digests: list[bytes]) -> str:
    return f"{kind}:{hashlib.sha256(b''.join(sorted(digests))).hexdigest()}"
