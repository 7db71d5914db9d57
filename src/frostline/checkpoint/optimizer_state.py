"""Optimizer state by parameter name, without pickle.

Tensors go through `torch.distributed.checkpoint`'s Hugging Face safetensors storage, everything else is JSON. Knows
nothing of plans or run folders.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from frostline.checkpoint.atomic import disk_errors, write_file
from frostline.checkpoint.json_file import read_json
from frostline.errors import CheckpointError
from frostline.tree import canonical_named_parameters

_TENSORS = "optimizer"
_JSON = "optimizer.json"


def save_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, directory: Path) -> tuple[str, ...]:
    """Write the state of `optimizer` into `directory`, and return the parameters that have none.

    Raises:
        CheckpointError: the optimizer holds a parameter that is not in the model, a value that cannot be written
            without pickle, or the disk is full.
    """
    paths = _paths_of(optimizer, model)
    tensors: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    for parameter, path in paths.items():
        if optimizer.state.get(parameter):
            values = cast("dict[str, Any]", optimizer.state[parameter])
            state[path] = {
                key: _encode(value, f"{path}/{key}", tensors, parameter.device) for key, value in values.items()
            }
    groups = [
        {
            "params": [paths[parameter] for parameter in group["params"]],
            "options": {
                key: _encode(value, f"group {number}/{key}", tensors, torch.device("cpu"))
                for key, value in group.items()
                if key not in ("params", "names", "param_names")
            },
        }
        for number, group in enumerate(optimizer.param_groups)
    ]
    if tensors:
        with disk_errors(directory / _TENSORS), _quiet():
            (directory / _TENSORS).mkdir()
            # Imported where it is used: with what it imports it would cost `frostline plan` more than a second.
            import torch.distributed.checkpoint as dcp

            writer = dcp.HuggingFaceStorageWriter(str(directory / _TENSORS))
            try:
                dcp.save({**tensors}, storage_writer=writer, no_dist=True)
            except dcp.api.CheckpointException as error:  # wraps all that its writer raises, Ctrl-C too
                if any(isinstance(cause, KeyboardInterrupt) for cause, _ in error.failures.values()):
                    raise KeyboardInterrupt from None
                raise
    record = {"class": type(optimizer).__name__, "groups": groups, "state": state, "num_tensors": len(tensors)}
    write_file(directory / _JSON, json.dumps(record))
    return tuple(sorted(path for path in paths.values() if path not in state))


def read_optimizer(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    directory: Path,
    *,
    without_state: Iterable[str] = (),
    allow_plan_change: bool = False,
) -> Callable[[], None]:
    """What puts the state saved in `directory` into `optimizer`, options of its groups included, once it is called.

    All is read and found to fit before it returns.

    Args:
        optimizer: of the same class, over the same parameters in the same groups.
        without_state: parameters known to have had no state.
        allow_plan_change: parameters that were not in the saved optimizer start without state, saved ones that are not
            in `optimizer` are dropped, and the options of its groups stay as they are where the groups differ.

    Raises:
        CheckpointError: names every parameter whose state is missing or unexpected or has the wrong shape.
    """
    record = read_json(directory / _JSON, _parse_record)
    where = directory / _JSON
    if record["class"] != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint holds the state of {record['class']}, the run uses {type(optimizer).__name__}",
            where=where,
            fix=f"set optimizer.name as it was, or start a new run with {type(optimizer).__name__}",
            possible=f"the state of {type(optimizer).__name__}",
        )
    paths = _paths_of(optimizer, model)
    state = cast("dict[str, dict[str, Any]]", record["state"])
    saved_names = {name for group in record["groups"] for name in group["params"]}
    stateless = set(without_state)
    faults: list[str] = []
    for path in paths.values():
        if path not in state and path not in stateless and (path in saved_names or not allow_plan_change):
            faults.append(f"no state for {path}")
    if not allow_plan_change:
        surplus = sorted(set(state) - set(paths.values()))
        faults += [f"state for {path}, which the optimizer does not hold" for path in surplus]
    groups = [[paths[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    same_groups = groups == [group["params"] for group in record["groups"]]
    if not same_groups and not allow_plan_change and not faults:
        faults.append(f"{len(record['groups'])} groups, other than the optimizer's {len(groups)} groups")
    if faults:
        raise CheckpointError(
            "the saved optimizer state does not fit: " + _listed(faults),
            where=where,
            possible="the parameters and groups that the checkpoint was written with",
            fix="resume with the config of the run, or give --allow-plan-change",
        )
    tensors = _read_tensors(directory / _TENSORS, record["num_tensors"])
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    fresh: dict[Tensor, dict[str, Any]] = {}
    for parameter, path in paths.items():
        if path not in state:
            continue
        values = {key: _decode(value, tensors, parameter.device, where) for key, value in state[path].items()}
        step = values.get("step")
        if isinstance(step, Tensor):
            # torch keeps `step` on the CPU unless a fused or captured kernel reads it.
            on_device = group_of[parameter].get("capturable") or group_of[parameter].get("fused")
            values["step"] = step.to(parameter.device if on_device else "cpu")
        for key, value in values.items():
            if isinstance(value, Tensor) and tuple(value.shape) not in _possible_shapes(key, parameter):
                faults.append(f"{path}: {key} has shape {list(value.shape)}, the parameter {list(parameter.shape)}")
        fresh[parameter] = values
    if faults:
        raise CheckpointError(
            "the saved optimizer state does not fit: " + _listed(faults),
            where=where,
            possible="one state for each parameter that trains",
            fix="use the config of the run, or start a new run folder",
        )
    options = [
        {key: _decode(value, tensors, torch.device("cpu"), where) for key, value in group["options"].items()}
        for group in record["groups"]
    ]

    def apply() -> None:
        optimizer.state.clear()
        optimizer.state.update(fresh)
        if same_groups:
            for group, saved in zip(optimizer.param_groups, options, strict=True):
                group.update(saved)

    return apply


def _parse_record(record: dict[str, Any]) -> dict[str, Any]:
    """`record`, after the shape that reading relies on was seen; raises as `read_json` wants it."""
    for group in record["groups"]:
        if not isinstance(group["params"], list) or not isinstance(group["options"], dict):
            raise ValueError(f"groups: {group!r}")
    for path, values in record["state"].items():
        if not isinstance(values, dict):
            raise ValueError(f"state: {path}")
    if not isinstance(record["class"], str) or not isinstance(record["num_tensors"], int):
        raise ValueError("class or num_tensors")
    return record


def _possible_shapes(key: str, parameter: Tensor) -> tuple[tuple[int, ...], ...]:
    """Shapes that the state `key` of `parameter` can have: the parameter's, or none (a step, a running product)."""
    shape = tuple(parameter.shape)
    if key == "row_var":  # the two factors of Adafactor
        return ((*shape[:-1], 1),)
    if key == "col_var":
        return ((*shape[:-2], 1, *shape[-1:]),)
    return ((), shape)


def _paths_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[Tensor, str]:
    """Canonical path of each parameter of the optimizer, in the optimizer's order."""
    names = {id(parameter): path for path, parameter in canonical_named_parameters(model, unique=True)}
    held: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unknown = [list(parameter.shape) for parameter in held if id(parameter) not in names]
    if unknown:
        raise CheckpointError(
            f"the optimizer holds {len(unknown)} parameters that are not in the model (shapes {unknown[:3]})",
            fix="build the optimizer after the last step that replaces parameters",
            where="the optimizer",
            possible="parameters of the model",
        )
    return {parameter: names[id(parameter)] for parameter in held}


def _encode(value: Any, name: str, tensors: dict[str, Tensor], home: torch.device) -> Any:
    """JSON form of a state value; tensors are put into `tensors` under `name`."""
    if isinstance(value, Tensor):
        # `home`: whether it lives beside its parameter, so that it finds its place again on another device.
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name, "home": value.device == home}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = cast("list[Any] | tuple[Any, ...]", value)
        encoded = [_encode(item, f"{name}/{index}", tensors, home) for index, item in enumerate(items)]
        return {"tuple": encoded} if isinstance(value, tuple) else encoded
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value)):
        items = cast("Mapping[str, Any]", value).items()
        return {"dict": {key: _encode(item, f"{name}/{key}", tensors, home) for key, item in items}}
    raise CheckpointError(
        f"optimizer state {name} is a {type(value).__name__}, which cannot be saved without pickle",
        possible="tensors, numbers, text, and lists or dicts of them",
        fix="use another optimizer",
        where="the optimizer",
    )


def _decode(value: Any, tensors: Mapping[str, Tensor], home: torch.device, where: Path) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors, home, where) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entry = cast("dict[str, Any]", value)
    if "tensor" in entry:
        if entry["tensor"] not in tensors:
            raise CheckpointError(
                f"the tensor {entry['tensor']!r} is missing from the optimizer state",
                where=where,
                possible="every tensor that optimizer.json names",
                fix="use another checkpoint",
            )
        tensor = tensors[entry["tensor"]]
        return tensor.to(home) if entry["home"] else tensor
    if "tuple" in entry:
        return tuple(_decode(item, tensors, home, where) for item in entry["tuple"])
    return {key: _decode(item, tensors, home, where) for key, item in entry["dict"].items()}


def _read_tensors(directory: Path, expected: int) -> dict[str, Tensor]:
    if expected == 0:
        return {}
    import torch.distributed.checkpoint as dcp  # see save_optimizer

    try:
        with _quiet():
            reader = dcp.HuggingFaceStorageReader(str(directory))
            described = cast("dict[str, Any]", reader.read_metadata().state_dict_metadata)
            tensors = {name: torch.empty(item.size, dtype=item.properties.dtype) for name, item in described.items()}
            dcp.load({**tensors}, storage_reader=reader, no_dist=True)
    except BaseException as error:  # torch.distributed.checkpoint's own exception is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise CheckpointError(
            f"the optimizer state cannot be read: {error}",
            where=directory,
            fix="use another checkpoint",
            possible="safetensors files as the run wrote them",
        ) from error
    if len(tensors) != expected:
        raise CheckpointError(
            f"the optimizer state holds {len(tensors)} tensors, not {expected}",
            where=directory,
            possible="every tensor that optimizer.json names",
            fix="use another checkpoint",
        )
    return tensors


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the note that one process saves alone, which is what `no_dist` asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _listed(faults: list[str], limit: int = 8) -> str:
    rest = f"; and {len(faults) - limit} more" if len(faults) > limit else ""
    return "; ".join(faults[:limit]) + rest
