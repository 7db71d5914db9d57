"""What a process that only plans leaves out, and that it is there again as soon as it is asked for.

Each script runs in a process of its own: what is imported here already cannot be left out.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from frostline.integrations.factory import _main_dtype
from frostline.integrations.hf_models.no_values import MetaWithoutValues, NoValues

PREAMBLE = """
import sys
from frostline.integrations.hf_models.planning import for_planning_only
from frostline.integrations.hf_models.startup import quick_imports
for_planning_only()
with quick_imports():
    import transformers.modeling_utils
    from transformers.models.bert import modeling_bert
loaded = set(sys.modules)
import torch
"""


def run(script: str, preamble: str = PREAMBLE) -> None:
    subprocess.run([sys.executable, "-c", preamble + script], check=True, timeout=120)


def test_neither_compiler_nor_dtensor_is_imported() -> None:
    run("""
for name in ("torch._dynamo.symbolic_convert", "torch.distributed.tensor", "sympy"):
    assert name not in loaded, name
assert torch.distributed.is_available(), "only while transformers is imported"
""")


def test_meta_model_needs_no_sympy() -> None:
    run("""
from frostline.integrations.hf_models.no_values import NoValues
config = transformers.BertConfig(hidden_size=16, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1)
with NoValues(), torch.device("meta"):
    modeling_bert.BertForSequenceClassification(config)
assert "sympy" not in sys.modules
""")


@pytest.mark.parametrize(
    "use",
    [
        "assert callable(torch._dynamo.explain)",
        "import torch._dynamo.config as config; assert hasattr(config, 'cache_size_limit')",
        "from torch._dynamo.utils import counters; assert counters is not None",
        "from transformers.masking_utils import TransformGetItemToIndex\nwith TransformGetItemToIndex(): pass",
        "f = torch.compile(lambda x: x + 1, backend='eager'); assert f(torch.ones(2)).tolist() == [2, 2]",
    ],
)
def test_the_real_compiler_comes_when_asked_for(use: str) -> None:
    run(f"""
{use}
import torch._dynamo.symbolic_convert
assert torch._dynamo.__file__ and sys.modules["torch._dynamo"] is torch._dynamo
assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
""")


def test_a_model_still_runs() -> None:
    run("""
config = transformers.BertConfig(hidden_size=16, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1)
model = modeling_bert.BertModel(config)
assert model(torch.tensor([[1, 2, 3]])).last_hidden_state.isfinite().all()
""")


def test_nothing_is_left_out_unless_asked_for() -> None:
    run(
        "assert 'torch.distributed.tensor' in loaded and 'torch._dynamo.symbolic_convert' in loaded",
        PREAMBLE.replace("for_planning_only()\nwith", "with"),
    )


def test_no_values_keeps_shapes_and_dtypes() -> None:
    with NoValues(), torch.device("meta"):
        layer = nn.Embedding(5, 3, dtype=torch.bfloat16)
        numbers = torch.arange(2, 12, 3)
        like = torch.empty_like(layer.weight)
        halved = torch.empty_like(layer.weight, dtype=torch.float16)
        elsewhere = torch.empty_like(layer.weight, device="cpu")
    assert layer.weight.is_meta
    assert layer.weight.requires_grad
    assert numbers.is_meta
    assert numbers.shape == (4,)
    assert numbers.dtype == torch.int64
    assert like.is_meta
    assert like.shape == (5, 3)
    assert like.dtype == torch.bfloat16
    assert halved.dtype == torch.float16
    assert elsewhere.device.type == "cpu"
    with NoValues():
        assert torch.arange(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", [NoValues, MetaWithoutValues])
def test_no_values_leaves_what_else_is_said_of_numbers(mode: type[TorchFunctionMode]) -> None:
    with torch.device("meta") if mode is NoValues else nullcontext(), mode():
        given = torch.empty(5, dtype=torch.int64)
        assert torch.arange(5, out=given) is given
        numbers = torch.arange(5.0, requires_grad=True)
    assert numbers.is_meta
    assert numbers.requires_grad


def test_the_first_of_two_dtypes_that_are_as_frequent_is_the_main_one() -> None:
    """Not the first of a set, which is another one in each process."""
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.float32]
    for first in dtypes:
        others = [dtype for dtype in dtypes if dtype is not first]
        layers = [nn.Linear(2, 2, dtype=dtype) for dtype in (first, *others)]
        assert _main_dtype(nn.Sequential(*layers)) is first
