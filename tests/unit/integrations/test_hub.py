"""Models of the Hub without the Hub: a cache laid out as huggingface_hub lays it out, and its own exceptions."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors
from huggingface_hub.utils import SafetensorsFileMetadata, SafetensorsRepoMetadata
from huggingface_hub.utils import TensorInfo as RemoteTensor
from safetensors.torch import load_file, save_file

from frostline.config.origin import Origin
from frostline.errors import ModelError
from frostline.integrations.hf_models import Head, build_meta, load_model, load_tokenizer, local_folder
from frostline.integrations.hf_models.hub import cached_models, tensor_headers
from frostline.integrations.hf_models.location import ModelLocation, resolve_location

ID = "some-org/tiny-bert"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = SimpleNamespace(dtype="auto", attn_implementation="eager", trust_remote_code=False)
LABELS = Head("sequence_classification", ("a", "b"), "single_label", 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot folder of `ID` in an empty Hub cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some-org--tiny-bert"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


def fill(snapshot: Path, folder: Path, *, num_shards: int) -> list[Path]:
    """The files of a model in the cache, its weights in shards; returns these."""
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (snapshot / file.name).write_bytes(file.read_bytes())
    state = load_file(folder / "model.safetensors")
    names = [f"model-{number + 1:05}-of-{num_shards:05}.safetensors" for number in range(num_shards)]
    weight_map = {key: names[index % num_shards] for index, key in enumerate(state)}
    for name in names:
        shard = {key: value for key, value in state.items() if weight_map[key] == name}
        save_file(shard, snapshot / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    return [snapshot / name for name in names]


def location(revision: str | None = None) -> ModelLocation:
    return resolve_location(ID, Origin("model", "run.yaml", 3), revision)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def http(kind: type[Exception], text: str = "said the Hub") -> Exception:
    import httpx2

    request = httpx2.Request("GET", "https://huggingface.co/api")
    made: Any = kind
    return made(text, response=httpx2.Response(404, request=request))


def test_a_cached_model_is_planned_and_loaded_offline(cache: Path, bert_folder: Path) -> None:
    fill(cache, bert_folder, num_shards=2)
    meta = build_meta(location(), SETTINGS, LABELS)
    loaded = load_model(location(), SETTINGS, LABELS, expected=meta)
    expected = load_file(bert_folder / "model.safetensors")
    state = loaded.model.state_dict()
    assert all(torch.equal(state[f"bert.{key}"], value) for key, value in expected.items())
    assert len(loaded.files) == 2
    assert len(load_tokenizer(location())) > 20
    assert cached_models() == [ID]


def test_a_download_that_was_killed_between_two_shards_goes_on(
    cache: Path, bert_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = fill(cache, bert_folder, num_shards=2)
    whole = build_meta(location(), SETTINGS, LABELS)
    kept = shards[1].read_bytes()
    state = load_file(bert_folder / "model.safetensors")
    shards[1].unlink()

    asked: list[str] = []

    def remote(name: str, *, revision: str | None) -> SafetensorsRepoMetadata:
        asked.append(name)
        return metadata({key: ("F32", list(value.shape)) for key, value in state.items()})

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        if "*.safetensors" in allow_patterns:
            shards[1].write_bytes(kept)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", remote)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    meta = build_meta(location(), SETTINGS, LABELS)
    assert asked == [ID], "the plan reads the headers of what is missing on the Hub"
    assert meta.new == whole.new
    assert load_model(location(), SETTINGS, LABELS, expected=meta).new == whole.new


def metadata(tensors: dict[str, tuple[Any, list[int]]]) -> SafetensorsRepoMetadata:
    infos = {name: RemoteTensor(dtype, shape, (0, 0)) for name, (dtype, shape) in tensors.items()}
    file = SafetensorsFileMetadata({}, infos)
    return SafetensorsRepoMetadata(None, False, dict.fromkeys(infos, "model.safetensors"), {"model.safetensors": file})


def test_headers_of_weights_that_are_not_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        huggingface_hub,
        "get_safetensors_metadata",
        lambda *_, **__: metadata({"w": ("BF16", [2, 3]), "s": ("F32", [])}),
    )
    headers = tensor_headers(location(), location().at(cache))
    assert {name: (entry.shape, entry.dtype) for name, entry in headers.items()} == {
        "w": ((2, 3), torch.bfloat16),
        "s": ((), torch.float32),
    }


def test_a_dtype_that_is_not_known(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: metadata({"w": ("F8_E8M0", [2])}))
    unknown = (
        r"tensor 'w' in .* has the unknown dtype 'F8_E8M0'\n +where: +run\.yaml, line 3: model\n"
        r" +possible: F64(.|\n)*do:"
    )
    with pytest.raises(ModelError, match=unknown):
        tensor_headers(location(), location().at(cache))
    header = json.dumps({"w": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (cache / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(ModelError, match=unknown):
        tensor_headers(location(), location().at(cache))


@pytest.mark.parametrize(
    ("error", "what", "fix"),
    [
        (http(errors.GatedRepoError), "is gated", "accept its terms on the Hub"),
        (http(errors.RevisionNotFoundError), "has no revision 'v9'", "correct model.revision"),
        (http(errors.RepositoryNotFoundError), "is neither a folder here nor a repository", "check the spelling"),
        (errors.LocalEntryNotFoundError("offline"), "nor in the local Hub cache", "go online"),
        (errors.OfflineModeIsEnabled("offline"), "nor in the local Hub cache", "go online"),
        (http(errors.HfHubHTTPError), "cannot be fetched from the Hub: said the Hub", "check the spelling"),
        (errors.HFValidationError("no id"), "cannot be fetched from the Hub: no id", "check the spelling"),
        (errors.HTTPError("no route"), "cannot be fetched from the Hub: no route", "check the spelling"),
        (OSError("disk full"), "cannot be fetched from the Hub: disk full", "check the spelling"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_model_that_cannot_be_fetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str, fix: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(error))
    with pytest.raises(ModelError) as raised:
        local_folder(location("v9"))
    (problem,) = raised.value.problems
    assert problem.what.startswith(f"model '{ID}' ")
    assert what in problem.what
    assert (problem.where, problem.possible) == ("run.yaml, line 3: model", f"in the local Hub cache: {ID}")
    assert fix in str(problem.fix)


def test_a_repository_without_a_config(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json on the Hub(.|\n)*that transformers can load"):
        local_folder(location())


@pytest.mark.parametrize(
    ("error", "what", "fix"),
    [
        (errors.NotASafetensorsRepoError("none"), "has no safetensors weights", "with safetensors"),
        (http(errors.HfHubHTTPError), "cannot be read on the Hub: said the Hub", "try again"),
        (errors.OfflineModeIsEnabled("offline"), "cannot be read on the Hub: offline", "download it first"),
        (errors.HTTPError("no route"), "cannot be read on the Hub: no route", "try again"),
        (errors.SafetensorsParsingError("a pointer"), "cannot be read on the Hub: a pointer", "try again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_headers_that_cannot_be_fetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str, fix: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", raising(error))
    with pytest.raises(ModelError) as raised:
        tensor_headers(location(), location().at(cache))
    (problem,) = raised.value.problems
    assert what in problem.what
    assert problem.where == "run.yaml, line 3: model"
    assert fix in str(problem.fix)
