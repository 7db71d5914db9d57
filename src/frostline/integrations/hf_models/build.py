"""Builds the tree of a Hugging Face model on the meta device: real names, shapes and classes, no weights.

What is new in it (not in the base files) is found by handing transformers' own loader the *headers* of the files as
meta tensors: prefixes, renamed keys, fused experts and ties are then treated exactly as in the real load. Knows nothing
of freezing, adapters or data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from frostline.errors import ModelError

from .headers import TensorHeader, main_dtype
from .hub import local_folder, tensor_headers
from .location import ModelLocation
from .no_values import NoValues
from .startup import quick_imports, quiet_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HeadKind = Literal["sequence_classification", "causal_lm"]
Problem = Literal["single_label", "multi_label", "regression"]
_AUTO_CLASSES: dict[str, str] = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "causal_lm": "AutoModelForCausalLM",
}
_PROBLEM_TYPES: dict[str, Any] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


class ModelSettings(Protocol):
    """What is read of `config.model`."""

    @property
    def dtype(self) -> str: ...
    @property
    def attn_implementation(self) -> str: ...
    @property
    def trust_remote_code(self) -> bool: ...


@dataclass(frozen=True)
class Head:
    """What stands on top of the model.

    Attributes:
        kind: picks transformers' Auto class.
        label_names: names of the outputs in order, kept in `model.config.id2label` (one entry for regression);
            empty for heads without labels.
        problem: what the outputs mean, for `sequence_classification`.
        pad_token_id: stored in the config: sequence classifiers of decoder models find the last token with it.
    """

    kind: HeadKind
    label_names: tuple[str, ...] = ()
    problem: Problem | None = None
    pad_token_id: int | None = None


@dataclass(frozen=True)
class MetaModel:
    """A model without weights, and what its files say about it.

    Attributes:
        model: on the meta device.
        new: paths of the parameters that the base files do not hold.
        resized: those of `new` that the files hold in the shape of another head: path -> (their shape, ours).
        unused: tensors of the files that the model has no place for.
        dtype: of the loaded parameters.
        remarks: further notes.
    """

    model: nn.Module
    new: frozenset[str]
    resized: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    unused: tuple[str, ...]
    dtype: torch.dtype
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a user should know about the fit of files and model, one line each."""
        lines = [
            f"{path}: the files hold shape {list(theirs)}, this task needs {list(ours)}: starts new"
            for path, (theirs, ours) in sorted(self.resized.items())
        ]
        if self.unused:
            shown = ", ".join(self.unused[:3]) + (", ..." if len(self.unused) > 3 else "")
            lines.append(f"{len(self.unused)} tensors of the base files have no place in this model: {shown}")
        return [*lines, *self.remarks]


def read_config(folder: ModelLocation, settings: ModelSettings, head: Head | None = None) -> PretrainedConfig:
    """The model's own config, with the labels of `head` written into it.

    Raises:
        ModelError: config.json is damaged, of an unknown architecture, or needs code that was not trusted.
    """
    with quick_imports():
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig
    try:
        config = AutoConfig.from_pretrained(str(folder.path), trust_remote_code=settings.trust_remote_code)
    except (ValueError, KeyError, OSError, ImportError, StrictDataclassError) as error:
        raise _config_error(folder, error) from error
    if head is not None and head.label_names:
        config.id2label = dict(enumerate(head.label_names))
        config.label2id = {name: number for number, name in enumerate(head.label_names)}
    if head is not None and head.problem is not None:
        config.problem_type = _PROBLEM_TYPES[head.problem]
    if head is not None and head.pad_token_id is not None:
        config.pad_token_id = head.pad_token_id
    return config


def _config_error(folder: ModelLocation, error: Exception) -> ModelError:
    text = str(error)
    if "trust_remote_code" in text:
        return ModelError(
            f"model {folder.name!r} runs Python code of its own",
            where=folder.where,
            fix="read that code, then set model.trust_remote_code: true",
            possible="architectures that transformers has, or trust in that code",
        )
    return ModelError(
        f"config.json of model {folder.name!r} cannot be used: {_first_line(error)}",
        where=folder.where,
        possible="architectures of the installed transformers",
        fix="check the file, or upgrade transformers if the model is newer than it",
    )


def build_meta(
    location: ModelLocation,
    settings: ModelSettings,
    head: Head,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> MetaModel:
    """The model as it will be loaded, on the meta device; reads a config and file headers, no weights.

    Args:
        location: from `resolve_location`.
        settings: `config.model`.
        head: what stands on top.
        say: is told of slow work (a GGUF conversion) before it starts.

    Raises:
        ModelError: the model cannot be found, has no head of this kind, or does not fit its files.
    """
    folder = local_folder(location, weights=False, say=say)
    headers = tensor_headers(location, folder)
    config = read_config(folder, settings, head)
    dtype = resolve_dtype(settings.dtype, headers)
    state = {name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in headers.items()}
    model, info = from_pretrained(folder, settings, head, config, dtype=dtype, meta_state=state)
    for name, parameter in model.named_parameters():
        # The loader casts what it finds; what it does not find must show the same dtype in the plan.
        if parameter.is_floating_point() and parameter.dtype != dtype and name in info["missing_keys"]:
            parameter.data = parameter.data.to(dtype)
    return describe(model, info, location, headers, dtype, head)


def resolve_dtype(asked: str, headers: Mapping[str, TensorHeader]) -> torch.dtype:
    """`auto` is the dtype that most elements of the files have."""
    return main_dtype(dict(headers)) if asked == "auto" else getattr(torch, asked)


def from_pretrained(
    folder: ModelLocation,
    settings: ModelSettings,
    head: Head,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype,
    meta_state: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """transformers' `from_pretrained` for this head: (model, loading info); its failures as `ModelError`.

    With `meta_state` (tensors on the meta device by their names in the files) nothing is read.
    """
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": settings.attn_implementation,
    }
    loading: dict[str, Any] = {
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # `describe` reports them, with shapes
    }
    trust: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    with quick_imports():
        import transformers

        auto_class: Any = getattr(transformers, _AUTO_CLASSES[head.kind])
        try:
            with quiet_transformers():
                if meta_state is None:
                    return auto_class.from_pretrained(str(folder.path), config=config, **options, **loading, **trust)
                # Only a model class takes a state dict; building once without storage is the public way to learn it.
                with NoValues():
                    with torch.device("meta"):
                        sample = auto_class.from_config(config, **options, **trust)
                    return type(sample).from_pretrained(
                        None, config=sample.config, state_dict=dict(meta_state), device_map="meta", **options, **loading
                    )
        except (ValueError, ImportError, OSError, RuntimeError) as error:
            raise _load_error(folder, head, error) from error


def _first_line(error: Exception) -> str:
    """What an exception of a library says, without its advice for programmers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # a heading: the next line says what it is
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__


def _load_error(folder: ModelLocation, head: Head, error: Exception) -> ModelError:
    text = str(error)
    if "scaled_dot_product_attention" in text or "attn_implementation=" in text:
        return ModelError(
            f"model {folder.name!r} has no attention of the kind that is asked for: {_first_line(error)}",
            where="model.attn_implementation (sdpa unless the config says otherwise)",
            possible="eager, which every model has",
            fix="set model.attn_implementation: eager",
        )
    if "Unrecognized configuration class" in text:
        return ModelError(
            f"transformers has no {head.kind} form of model {folder.name!r}",
            where=folder.where,
            fix="choose a model whose architecture has one, or another recipe",
            possible="models that transformers has such a form of",
        )
    if "flash_attn" in text or "FlashAttention" in text:
        return ModelError(
            "attn_implementation flash_attention_2 cannot be used here: " + _first_line(error),
            where="model.attn_implementation",
            possible="eager, sdpa",
            fix="set model.attn_implementation: sdpa, or install flash-attn on a CUDA machine",
        )
    return ModelError(
        f"model {folder.name!r} cannot be loaded: {_first_line(error)}",
        where=folder.where,
        fix=f"check the files in {folder.path}",
        possible="a folder as save_pretrained writes it",
    )


def describe(
    model: nn.Module,
    info: Mapping[str, Any],
    location: ModelLocation,
    headers: Mapping[str, TensorHeader],
    dtype: torch.dtype,
    head: Head,
) -> MetaModel:
    """Reads transformers' loading info; a parameter of the wrong shape is only accepted in a head of another size.

    Raises:
        ModelError: a tensor of the body does not fit, or not one tensor of the files does.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    resized: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for entry in info["mismatched_keys"]:
        path, theirs, ours = entry[0], tuple(entry[-2]), tuple(entry[-1])
        if not (head.label_names and ours and ours[0] == len(head.label_names) and theirs[1:] == ours[1:]):
            raise ModelError(
                f"{path} has shape {list(theirs)} in the files of {location.name!r} and {list(ours)} in the model",
                where=location.where,
                fix="config.json and the weights do not belong together: get both from the same place",
                possible="tensors of the shapes that config.json says",
            )
        resized[path] = (theirs, ours)
    new = frozenset(name for name in parameters if name in set(info["missing_keys"]) | set(resized))
    if parameters and len(new) == len(parameters):
        raise ModelError(
            f"none of the {len(headers)} tensors in the files of model {location.name!r} has a place in the model",
            where=location.where,
            possible=f"in the files: {', '.join(sorted(headers)[:3])}\n"
            f"in the model: {', '.join(sorted(parameters)[:3])}",
            fix="config.json and the weights do not belong together, or the files hold an adapter: name its base",
        )
    return MetaModel(model, new, resized, tuple(sorted(info["unexpected_keys"])), dtype)


def model_window(config: PretrainedConfig) -> int | None:
    """The longest input of a model in tokens, if its config tells: position tables or the trained context."""
    text = config.get_text_config()
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
        window = getattr(text, key, None)
        if isinstance(window, int) and window > 0:
            # RoBERTa's position ids start after the padding id, so that its table of 514 takes 512 tokens.
            offset = (text.pad_token_id or 0) + 1 if text.model_type in _OFFSET_POSITIONS else 0
            return window - offset
    return None


_OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "xlm-roberta-xl",
    "roberta-prelayernorm",
    "longformer",
    "mpnet",
)


def source_files(location: ModelLocation, folder: ModelLocation) -> list[Path]:
    """The files that hold the weights as the user has them: what a base is identified by."""
    from .headers import weight_files

    if location.kind == "gguf":
        assert location.path is not None
        return [location.path]
    return weight_files(folder)
