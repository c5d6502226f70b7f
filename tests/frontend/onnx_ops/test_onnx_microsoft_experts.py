"""Mixtures of experts whose weights are integers, against ONNX Runtime."""

import numpy as np
import pytest
from onnx import helper

from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

F32, OP = "float32", "com.microsoft::QMoE"
GROUPS, WIDTH, INNER = 6, 32, 48


def given(rng, *, rows=(3,), bits=4, size=0, wide=1, zeros=False, bias=True, routing=False):
    """Inputs by name in the operator's order; absent ones begin with an underscore."""
    count = 8 // bits

    def product(name, columns, terms):
        blocks = terms // size if size else 1
        numbers = rng.integers(0, 256, (GROUPS, columns, terms // count)).astype("uint8")
        scales = rng.uniform(0.005, 0.02, (GROUPS, columns, blocks)).astype(F32)
        held = (columns, -(-blocks // count)) if size else (-(-columns // count),)
        found = {name: numbers, f"{name}s": scales if size else scales[..., 0]}
        found[f"{name}b"] = rng.standard_normal((GROUPS, columns), F32)
        return found, rng.integers(0, 256, (GROUPS, *held)).astype("uint8")

    (first, first_zeros), (second, second_zeros) = (
        product("u", wide * INNER, WIDTH),
        product("d", WIDTH, INNER),
    )
    inputs = {"x": rng.standard_normal((*rows, WIDTH), F32)}
    lines = int(np.prod(rows))
    inputs["r"] = rng.standard_normal((lines, GROUPS), F32) * 2
    inputs |= first | second
    if zeros or routing:
        inputs |= dict.fromkeys(("_3", "_3s", "_3b"), np.zeros(0))
        inputs |= {"uz": first_zeros, "dz": second_zeros, "_3z": np.zeros(0)}
    if routing:
        inputs["w"] = rng.uniform(0, 1, (lines, GROUPS)).astype(F32)
    if not zeros:
        inputs = {f"_{n}" if n in ("uz", "dz") else n: a for n, a in inputs.items()}
    if not bias:
        inputs = {f"_{n}" if n in ("ub", "db") else n: a for n, a in inputs.items()}
    return inputs


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
CASES = {
    "rows": ({}, {}),
    "few rows": ({"rows": (1, 2)}, {"activation_type": "silu"}),
    "swiglu": (
        {"rows": (2, 3), "wide": 2, "size": 16, "zeros": True},
        {**SWIGLU, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5},
    ),
    "few rows of blocks": ({"rows": (1,), "wide": 2, "size": 16, "zeros": True}, SWIGLU),
    "bytes": ({"bits": 8, "zeros": True}, {"activation_type": "gelu"}),
    "two bits": ({"bits": 2, "bias": False}, {"activation_type": "identity"}),
    "weights": ({"routing": True}, {"normalize_routing_weights": 1}),
    "weights as they are": ({"routing": True, "rows": (1,)}, {}),
}


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize(("shape", "attrs"), CASES.values(), ids=CASES)
def test_experts_of_few_bits(agrees, rng, shape, attrs):
    inputs = given(rng, **shape)
    constants = [n for n in inputs if n not in ("x", "r", "w") and not n.startswith("_")]
    attrs = {"k": 2, "expert_weight_bits": shape.get("bits", 4), **attrs}
    if "size" in shape:
        attrs["block_size"] = shape["size"]
    agrees(OP, inputs, {"y": F32}, constants=constants, rtol=1e-4, atol=1e-4, **attrs)


@pytest.mark.parametrize(
    ("attrs", "sentence"),
    [
        ({"activation_type": "tanh"}, "of activation tanh"),
        ({"activation_type": "swiglu"}, "of a gate that is not interleaved"),
        ({"quant_type": "fp4"}, "of type fp4"),
        ({"weights_prepacked": 1}, "with weights packed for one GPU"),
        ({"use_sparse_mixer": 1}, "with a sparse mixer"),
        ({"block_size": 20}, "of 4 bits in blocks of 20 of 32 terms"),
    ],
)
@pytest.mark.every_case
def test_what_experts_cannot_be(onnx_model, rng, attrs, sentence):
    inputs = given(rng)
    weights = {n: a for n, a in inputs.items() if n not in ("x", "r")}
    node = helper.make_node("QMoE", [*inputs], ["y"], domain="com.microsoft", k=2, **attrs)
    types = {n: (F32, list(inputs[n].shape)) for n in ("x", "r")}
    model = onnx_model([node], types, {"y": (F32, None)}, weights, domains=["com.microsoft"])
    with pytest.raises(UserError, match=sentence):
        import_model(model)
