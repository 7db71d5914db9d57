"""Modules whose children's weights are read directly, past the children's `forward`: an adapter there would be dead.

One table; a row names the parent class, the children concerned, and the code that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from torch import nn

from frostline.tree import ModuleTree

# Parent class name -> names of children whose `.weight` it reads itself.
WEIGHT_READERS: dict[str, tuple[str, ...]] = {
    # torch.nn.functional.multi_head_attention_forward takes out_proj.weight as an argument.
    "MultiheadAttention": ("out_proj",),
    # The fast path of inference (torch._transformer_encoder_layer_fwd) takes the weights of both linears.
    "TransformerEncoderLayer": ("linear1", "linear2"),
    # The fused kernels of mamba_ssm take these weights; transformers' slow path reads dt_proj.weight as well.
    "MambaMixer": ("x_proj", "dt_proj", "out_proj"),
    "FalconMambaMixer": ("x_proj", "dt_proj", "out_proj"),
    "JambaMambaMixer": ("dt_proj",),
    "Mamba2Mixer": ("out_proj",),
    "BambaMixer": ("out_proj",),
    "Zamba2MambaMixer": ("out_proj",),
    "NemotronHMamba2Mixer": ("out_proj",),
    "GraniteMoeHybridMambaLayer": ("out_proj",),
    "FalconH1Mixer": ("out_proj",),
    # These transformers models call functional kernels with the weights of their own linears.
    "WavLMAttention": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "DetrMHAttentionMap": ("k_proj",),
    "ConditionalDetrMHAttentionMap": ("k_proj",),
    "DabDetrMHAttentionMap": ("k_linear",),
    "MaskFormerDetrMHAttentionMap": ("k_proj",),
    "MobileBertLMPredictionHead": ("decoder", "dense"),
    # Codebooks: distances to all rows are computed from the weight; only what was found is looked up.
    "ChameleonVQVAEVectorQuantizer": ("embedding",),
    "Emu3VQVAEVectorQuantizer": ("embedding",),
    "GlmImageVQVAEVectorQuantizer": ("embedding",),
    "JanusVQVAEVectorQuantizer": ("embedding",),
}


def reader_of(tree: ModuleTree, index: int) -> str | None:
    """Name of the parent's class if it reads the weight of module `index` directly, else None."""
    ref = tree.modules[index]
    if ref.parent < 0:
        return None
    read = _read_by(type(tree.modules[ref.parent].module))
    return read.get(ref.name) if read else None


@cache
def _read_by(cls: type[nn.Module]) -> Mapping[str, str]:
    """Name of each child whose weight a module of this class reads -> the class that does, the nearest first."""
    read: dict[str, str] = {}
    for base in cls.__mro__:
        for child in WEIGHT_READERS.get(base.__name__, ()):
            read.setdefault(child, base.__name__)
    return read
