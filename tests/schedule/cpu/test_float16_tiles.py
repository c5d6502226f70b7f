"""Tiles of float16 (AMX-FP16): products, norms in front and attention, by the interpreter."""

import numpy as np
import pytest
import tvm
from emulator.tiles import tiles_of
from group_kernels import emitted, group, run, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tests.schedule.attention.attention_graphs import scaled
from tvm_fusion.device import parse
from tvm_fusion.schedule.attention.cpu.tile_config import TileAttentionConfig
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction

op = relax.op
HALF = "float16"
TARGET, FEATURE = tiles_of(HALF)
CPU = parse(TARGET)


def drawn(*shape):
    return np.random.default_rng().standard_normal(shape).astype(HALF)


def compiled(tiles, params, body, *arrays):
    """The result of a graph through all stages."""

    def call():
        target = CPU.tvm_target()
        with target:
            mod = main_module(params, lambda emit, *_: body(emit))
            built = tvm.compile(mod, target, relax_pipeline="tvm_fusion", tir_pipeline="tvm_fusion")
        return relax.VirtualMachine(built, tvm.cpu())["main"](
            *map(tvm.runtime.tensor, arrays)
        ).numpy()

    return tiles.run(call, FEATURE)


def test_products(tiles):
    """Of a symbolic number of rows with a packed weight, and a rest of K."""
    x, w, a = tensor("x", tirx.Var("m", "int64"), 99, dtype=HALF), drawn(99, 70), drawn(37, 99)
    found = compiled(tiles, [x], lambda _: op.matmul(x, relax.const(w), out_dtype="float32"), a)
    size = np.abs(a.astype("float64")) @ np.abs(w.astype("float64"))
    assert (np.abs(found - a.astype("float64") @ w) <= 101 * 2.0**-23 * size).all()


def test_norms_in_front(tiles):
    x, w, a = tensor("x", 37, 64, dtype=HALF), drawn(64, 40), drawn(37, 64)

    def body(emit):
        wide = emit(op.astype(x, "float32"))
        ones, zeros = (relax.const(np.full(64, value, "float32")) for value in (1, 0))
        normal = emit(op.astype(emit(op.nn.layer_norm(wide, ones, zeros, axes=[-1])), HALF))
        return op.matmul(normal, relax.const(w), out_dtype="float32")

    found, wide = compiled(tiles, [x], body, a), a.astype("float64")
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    size = np.abs(normal) @ np.abs(w.astype("float64"))
    assert (np.abs(found - normal @ w) <= (2.0**-11 + 66 * 2.0**-23) * size).all()


def test_attention(tiles):
    params = [tensor(name, 1, 2, 33, 40, dtype=HALF) for name in "qkv"]

    def body(emit, q, k, v):
        across = emit(op.permute_dims(k, [0, 1, 3, 2]))
        scores = emit(op.matmul(q, across, out_dtype="float32"))
        weights = emit(op.astype(emit(op.nn.softmax(scaled(emit, scores), -1)), HALF))
        return emit(op.matmul(weights, v, out_dtype="float32"))

    made = emitted(Attention(False), params, body, CPU)
    assert isinstance(made.claim.details.config, TileAttentionConfig)
    assert made.claim.matrix_dtype == HALF
    inputs = {name: drawn(1, 2, 33, 40) for name in "qkv"}
    (found,) = tiles.run(lambda: run(made.func, made.members, inputs, CPU), FEATURE)
    q, k, v = (x.astype("float64") for x in inputs.values())
    e = np.exp(q @ np.swapaxes(k, -1, -2) / 8)
    weights = e / e.sum(-1, keepdims=True)
    assert (np.abs(found - weights @ v) <= weights @ np.abs(v) / 1024 + 1e-5).all()


@pytest.mark.parametrize(("name", "unit"), [("graniterapids", HALF), ("sapphirerapids", "")])
def test_which_cpus_multiply_tiles_of_float16(name, unit):
    spec = parse(f"cpu:{name}")
    params = [tensor("x", 64, 64, dtype=HALF), tensor("w", 64, 32, dtype=HALF)]
    members = group(params, lambda _, x, w: op.matmul(x, w, out_dtype="float32"), spec)
    assert CpuContraction().claim(members, spec.device).matrix_dtype == unit
