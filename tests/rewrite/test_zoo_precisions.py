"""Models of several architectures are recomposed and fused in half types as in float32."""

from collections import Counter

import pytest

from tvm_fusion import FusionConfig
from tvm_fusion.core.decisions import recording
from tvm_fusion.report.planned import plan_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

TARGET = "cuda:sm_90a"
HALVES = (torch.float16, torch.bfloat16)
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
DECODER = {"num_key_value_heads": 2, "use_cache": False, "vocab_size": 99}
T5 = {"vocab_size": 99, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_heads": 4}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1], "num_heads": [2]}
GPT2 = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32, "use_cache": False}
#: Model, configuration with its sizes, attention's implementation, and what is recomposed at least.
MODELS = {
    "bert": ("BertModel", "BertConfig", {"vocab_size": 99, **SIZES}, "sdpa", "attention"),
    "gpt2": ("GPT2Model", "GPT2Config", {"vocab_size": 99, **GPT2}, "eager", "attention gelu_tanh"),
    "swin": ("SwinModel", "SwinConfig", {"window_size": 4, **SWIN}, "eager", "attention"),
    "t5": ("T5EncoderModel", "T5Config", T5, "eager", "attention rms_norm"),
    "llama": ("LlamaModel", "LlamaConfig", {**SIZES, **DECODER}, "sdpa",
              "attention rms_norm rotary silu"),
}  # fmt: skip


def inputs(name, dtype):
    if name == "swin":
        side = SWIN["image_size"]
        return {"pixel_values": torch.randn(1, 3, side, side, dtype=dtype)}
    ids = {"input_ids": torch.randint(99, (1, 24))}
    if name == "bert":
        ids["attention_mask"] = (torch.arange(24)[None] < 20).long()
    return ids


def program(name, dtype=torch.float32):
    model, config, sizes, attention, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config)(**sizes)
    module = getattr(transformers, model)._from_config(config, attn_implementation=attention)
    module = module.eval().requires_grad_(False)
    for parameter in module.parameters():
        if parameter.ndim == 1:  # biases of zero are added to nothing
            parameter.uniform_(0.5, 1.5)
    return torch.export.export(module.to(dtype), (), inputs(name, dtype), strict=False)


def planned(model, precision="fp32"):
    """Count launches, and what is recomposed of the model."""
    with recording() as log:
        found = plan_model(model, TARGET, FusionConfig(precision=precision))
    launches = sum(claim.launches for plan in found.plans.values() for claim in plan.claims)
    taken = [d.consumer for d in log if d.code in ("recomposed", "recognised")]
    return launches, Counter(taken)


@pytest.mark.parametrize("name", MODELS)
def test_kernels_and_operators_are_those_of_float32(name):
    wide = program(name)
    launches, operators = planned(wide)
    assert set(operators) >= set(MODELS[name][-1].split())
    for half in (planned(wide, "fp16"), *(planned(program(name, dtype)) for dtype in HALVES)):
        assert half[1] == operators
        assert half[0] <= launches


def test_norms_between_products_have_no_kernel():
    """Of BERT, all but that of the embeddings, which is no product, and the last, a result."""
    sizes = {**SIZES, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2}
    config = transformers.BertConfig(vocab_size=99, **sizes)
    module = transformers.BertModel._from_config(config, attn_implementation="sdpa").eval()
    ids = {"input_ids": torch.randint(99, (1, 96))}
    for parameter in module.requires_grad_(False).parameters():
        if parameter.ndim == 1:  # biases of zero are added to nothing
            parameter.uniform_(0.5, 1.5)
    exported = torch.export.export(module.half(), (), ids, strict=False)
    claims = [
        [c for p in plan_model(exported, TARGET, config).plans.values() for c in p.claims]
        for config in (FusionConfig(), FusionConfig(without=["norm_statistics"]))
    ]
    launches = [sum(c.launches for c in some) for some in claims]
    assert launches[1] - launches[0] == 3
    # Biases and heads are of the product behind a norm, not computed in front of attention.
    titles = [c.group.title for c in claims[0] if c.template.name == "attention"]
    assert len(titles) == 2
    assert not any("add" in title or "split" in title for title in titles)
