"""A mixture of experts of the size that models have today, in plain torch: 60 layers of 256 experts of three linears.

`build` is what `model.factory` of `large_moe.yaml` names: 46,080 expert linears and the attention beside them, 46,620
parameters in 61,926 modules. It is meant for the meta device; with values it would take a terabyte.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 32_000


class Expert(nn.Module):
    """A gated feed-forward part: `[tokens, hidden]` to `[tokens, hidden]`."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as above."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A router and its experts, of which each token takes the best two."""

    def __init__(self, hidden: int, inner: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(hidden, inner) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, sequence, hidden]` to the same."""
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(rows).softmax(-1).topk(min(2, len(self.experts)))
        out = torch.zeros_like(rows)
        for index in chosen.unique().tolist():
            token, place = (chosen == index).nonzero(as_tuple=True)
            out[token] += self.experts[index](rows[token]) * weights[token, place, None]
        return out.view(x.shape)


class Attention(nn.Module):
    """Causal self-attention: `[batch, sequence, hidden]` to the same."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as above."""
        q, k, v = (
            part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Attention and experts, each behind a normalization."""

    def __init__(self, hidden: int, inner: int, num_experts: int, num_heads: int) -> None:
        super().__init__()
        self.input_norm, self.self_attn = nn.RMSNorm(hidden), Attention(hidden, num_heads)
        self.post_norm, self.mlp = nn.RMSNorm(hidden), Experts(hidden, inner, num_experts)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, sequence, hidden]` to the same."""
        x = x + self.self_attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Backbone(nn.Module):
    """The stack of layers below the head."""

    def __init__(self, hidden: int, inner: int, num_layers: int, num_experts: int, num_heads: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden, inner, num_experts, num_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(hidden)

    def forward(self, input_ids: Tensor) -> Tensor:
        """`[batch, sequence]` of ids to `[batch, sequence, hidden]`."""
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class MixtureOfExperts(nn.Module):
    """A language model: `[batch, sequence]` of ids to logits `[batch, sequence, vocabulary]`."""

    def __init__(self, hidden: int, inner: int, num_layers: int, num_experts: int, num_heads: int) -> None:
        super().__init__()
        self.model = Backbone(hidden, inner, num_layers, num_experts, num_heads)
        self.lm_head = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Shapes as above."""
        return self.lm_head(self.model(input_ids))


def build(
    num_layers: int = 60, num_experts: int = 256, hidden: int = 2_048, inner: int = 768, num_heads: int = 16
) -> MixtureOfExperts:
    """The model on the device in force, its values drawn from torch's random state."""
    return MixtureOfExperts(hidden, inner, num_layers, num_experts, num_heads)
