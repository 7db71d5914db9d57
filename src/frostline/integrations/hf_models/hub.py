"""Brings the files of a model to a local folder: from the Hub's cache or the Hub, or by converting a GGUF file.

Knows where files come from, not what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from frostline.errors import ModelError

from .gguf import converted_folder
from .headers import TensorHeader, has_all_weights, read_headers, weight_files
from .location import ModelLocation

_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.py"]
_WEIGHTS = ["*.safetensors"]


def local_folder(
    location: ModelLocation, *, weights: bool = True, say: Callable[[str], None] = lambda line: None
) -> ModelLocation:
    """The model as a folder that holds its config and tokenizer, and its weights if `weights`.

    Raises:
        ModelError: the Hub does not know the repository, or cannot be reached and nothing is in the local cache.
    """
    if location.kind == "folder":
        return location
    if location.kind == "gguf":
        return location.at(converted_folder(location, say))
    return location.at(_snapshot(location, _SMALL_FILES + (_WEIGHTS if weights else [])))


def tensor_headers(location: ModelLocation, folder: ModelLocation) -> dict[str, TensorHeader]:
    """Names, shapes and dtypes of the tensors in the weight files.

    For a Hub repository whose weights are not all here only the headers are fetched, a few kB.

    Raises:
        ModelError: a weight file is missing, damaged or not safetensors, or the Hub cannot be asked.
    """
    if location.kind == "hub" and folder.path is not None and not has_all_weights(folder.path):
        return _remote_headers(location)
    return read_headers(weight_files(folder), location.where)


def _snapshot(location: ModelLocation, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(location.name, revision=location.revision, allow_patterns=patterns)
    except GatedRepoError as error:  # before RepositoryNotFoundError, of which it is a kind
        raise _unknown(location, "is gated", "accept its terms on the Hub, then `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise _unknown(location, f"has no revision {location.revision!r}", "correct model.revision") from error
    except RepositoryNotFoundError as error:
        raise _unknown(location, "is neither a folder here nor a repository on the Hub", _SPELL) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _unknown(
            location,
            "is neither a folder here nor in the local Hub cache, and the Hub cannot be reached",
            f"{_SPELL}; or go online (unset HF_HUB_OFFLINE) once to download it",
        ) from error
    except (HTTPError, HFValidationError, OSError) as error:
        raise _unknown(location, f"cannot be fetched from the Hub: {error}", _SPELL) from error
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise _unknown(location, "has no config.json on the Hub", "name a repository that transformers can load")
    return path


_SPELL = "check the spelling of the id (org/name) or give a folder"


def _unknown(location: ModelLocation, what: str, fix: str) -> ModelError:
    cached = cached_models()
    possible = f"in the local Hub cache: {', '.join(cached[:8])}" if cached else None
    return ModelError(
        f"model {location.name!r} {what}",
        where=location.where,
        possible=possible or "a folder, a .gguf file, package:PKG/sub/folder, or a Hub id such as org/name",
        fix=fix,
    )


def cached_models() -> list[str]:
    """Ids of the model repositories in the local Hub cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return sorted(
        entry.name.removeprefix("models--").replace("--", "/") for entry in Path(HF_HUB_CACHE).glob("models--*")
    )


def _remote_headers(location: ModelLocation) -> dict[str, TensorHeader]:
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        metadata = get_safetensors_metadata(location.name, revision=location.revision)
    except NotASafetensorsRepoError as error:
        raise _unknown(location, "has no safetensors weights", "choose a repository with safetensors") from error
    except (HTTPError, SafetensorsParsingError, OSError) as error:
        raise _unknown(location, f"cannot be read on the Hub: {error}", "try again, or download it first") from error
    return {
        name: TensorHeader.read(name, tensor.shape, tensor.dtype, file=file, where=location.where)
        for file, content in metadata.files_metadata.items()
        for name, tensor in content.tensors.items()
    }
