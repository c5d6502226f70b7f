"""Norm prologues of GEMM on a CPU: one kernel, checked against float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm
from group_kernels import CPU, CUDA, check, group, needs_caches, tensor
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.pipeline import relax_pipeline
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.cpu.templates.norm import NormGemm
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
m = tirx.Var("m", "int64")
EPSILON = 1e-5


def layer_norm(x, g, b):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + EPSILON) * g + b


def weights(*shape, seed=1):
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return drawn.astype("float32")


def normed(emit, x, g, b, w):
    return op.matmul(emit(op.nn.layer_norm(x, g, b, [-1], EPSILON)), w)


def normed_reference(x, g, b, w):
    return [layer_norm(x, g, b) @ w]


SHAPES = {
    "a tile and a rest": (1, 15, 33, 70),
    "more rows than a block": (301, 40, 40),
    "long rows, small blocks": (37, 5000, 33),
    "rows of two axes": (2, 13, 40, 50),
    "symbolic rows": (m, 50, 77),
}


@pytest.mark.parametrize("case", SHAPES)
def test_norms_of_inputs(case):
    *rows, terms, columns = SHAPES[case]
    params = [tensor("x", *rows, terms), tensor("g", terms), tensor("b", terms)]
    params.append(tensor("w", terms, columns))
    claim, _ = check(NormGemm(), params, normed, normed_reference, CPU)
    assert claim.launches == 1


def test_a_norm_that_others_need_is_written_too():
    """As the sum with a residual does behind a block of a transformer."""
    params = [tensor("x", 21, 40), tensor("g", 40), tensor("b", 40), tensor("w", 40, 48)]

    def body(emit, x, g, b, w):
        rows = emit(op.nn.layer_norm(x, g, b, [-1], EPSILON))
        return [rows, op.nn.gelu(emit(op.matmul(rows, w)))]

    def reference(x, g, b, w):
        rows = layer_norm(x, g, b)
        total = rows @ w
        return [rows, total / 2 * (1 + np.vectorize(math.erf)(total / math.sqrt(2)))]

    check(NormGemm(), params, body, reference, CPU)


def test_softmax_and_maps_between():
    """Any rows do; what lies between them and the product is computed with them."""
    params = [tensor("x", 3, 9, 50), tensor("w", 3, 50, 20)]

    def body(emit, x, w):
        rows = emit(op.multiply(emit(op.nn.softmax(x, -1)), relax.const(3.0)))
        return op.matmul(emit(op.tanh(rows)), w)

    assert isinstance(NormGemm().claim(group(params, body), CPU.device), Refusal)

    def shared(emit, x, w):
        rows = emit(op.multiply(emit(op.nn.softmax(x, -1)), relax.const(3.0)))
        return op.matmul(emit(op.tanh(rows)), w)

    def reference(x, w):
        raised = np.exp(x - x.max(-1, keepdims=True))
        return [np.tanh(3 * raised / raised.sum(-1, keepdims=True)) @ w]

    check(NormGemm(), [params[0], tensor("w", 50, 20)], shared, reference, CPU)


@pytest.mark.slow
def test_rows_of_the_second_operand():
    """The product is stored across them."""
    params = [tensor("x", 9, 50), tensor("g", 50), tensor("b", 50), tensor("w", 20, 50)]

    def body(emit, x, g, b, w):
        return op.matmul(w, emit(op.permute_dims(emit(op.nn.layer_norm(x, g, b, [-1], EPSILON)))))

    check(NormGemm(), params, body, lambda x, g, b, w: [w @ layer_norm(x, g, b).T], CPU)


# Chosen by cost ---------------------------------------------------------------------------------


def written_out(emit, x, g):
    """Root mean square norm, operator by operator."""
    mean = emit(op.mean(emit(op.multiply(x, x)), [-1], keepdims=True))
    scale = emit(op.rsqrt(emit(op.add(mean, relax.const(EPSILON)))))
    return emit(op.multiply(emit(op.multiply(x, scale)), g))


def gated(emit, x, g):
    """The first half of a gated feed-forward layer, with constant weights."""
    terms = int(x.ty.shape[-1])
    total = emit(op.matmul(written_out(emit, x, g), relax.const(weights(terms, 96))))
    split = emit(op.split(total, 2, axis=-1))
    gate, up = (emit(relax.TupleGetItem(split, i)) for i in range(2))
    return op.multiply(emit(op.nn.silu(gate)), up)


def gated_reference(x, g):
    rows = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * g
    gate, up = np.split(rows @ weights(x.shape[-1], 96), 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def layer(emit, x, g):
    """A norm as one operator, and a product with a bias."""
    terms = int(x.ty.shape[-1])
    rows = emit(op.nn.layer_norm(x, g, g, [-1], EPSILON))
    return op.add(
        emit(op.matmul(rows, relax.const(weights(terms, 64)))), relax.const(np.float32(3))
    )


def layer_reference(x, g):
    return layer_norm(x, g, g) @ weights(x.shape[-1], 64) + 3


BODIES = {"gated": (gated, gated_reference), "layer": (layer, layer_reference)}


@needs_caches
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_few_rows_take_one_kernel(name, rows):
    body, reference = BODIES[name]
    built, kernels = planned(body, rows, 320)
    assert kernels == 1
    x, g = weights(rows, 320, seed=2), weights(320, seed=3)
    found = built(tvm.runtime.tensor(x), tvm.runtime.tensor(g)).numpy()
    expected = reference(x.astype("float64"), g.astype("float64"))
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("cores", "rows", "together"),
    [(2, 1, True), (2, 16, True), (2, 1024, True), (8, 128, True), (8, 64, False), (16, 1, False)],
)
def test_the_cost_tells_when_rows_take_a_kernel_of_their_own(cores, rows, together):
    """Where there are fewer rows than cores can share, tasks would compute them again."""
    device = replace(parse("cpu:x86-64-v4").device, cores=cores)
    params = [tensor("x", rows, 768), tensor("g", 768)]
    members = group(params, layer).members
    one = NormGemm().claim(Group(members), device)
    two = [
        Rows().claim(Group(members[:1]), device),
        CpuContraction().claim(Group(members[1:]), device),
    ]
    fused, apart = CostModel(device).compare([one], two)
    assert (fused.us < apart.us) is together


def planned(body, rows, terms):
    """Compile for two cores, which the cost depends on; also tells the number of kernels."""
    target = tvm.target.Target({**CPU.tvm_target().export(), "num-cores": 2})
    params = [tensor("x", rows, terms), tensor("g", terms)]
    with target:
        mod = relax_pipeline(target=target, lower=False)(main_module(params, body))
    kernels = sum(isinstance(f, tirx.PrimFunc) for f in mod.functions.values())
    built = tvm.compile(mod, target, relax_pipeline="default", tir_pipeline="tvm_fusion")
    return relax.VirtualMachine(built, tvm.cpu())["main"], kernels


# Refusals ---------------------------------------------------------------------------------------


def test_both_operands_cannot_be_rows():
    """The columns are rows of a second norm, which all tasks would compute."""
    params = [tensor("x", 9, 50), tensor("y", 20, 50), tensor("g", 50)]

    def body(emit, x, y, g):
        left = emit(op.nn.rms_norm(x, g, [-1]))
        right = emit(op.nn.rms_norm(y, g, [-1]))
        return op.matmul(left, emit(op.permute_dims(right)))

    refusal = NormGemm().claim(group(params, body), CPU.device)
    assert isinstance(refusal, Refusal)


def test_a_gpu_is_refused():
    params = [tensor("x", 9, 50), tensor("g", 50), tensor("b", 50), tensor("w", 50, 20)]
    refusal = NormGemm().claim(group(params, normed, CUDA), CUDA.device)
    assert isinstance(refusal, Refusal)
    assert "CPU" in refusal.sentence
