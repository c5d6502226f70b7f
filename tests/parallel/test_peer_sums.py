"""Small sums over workers, with residual and norm, by kernels over the memory of peers' GPUs."""

import ml_dtypes
import numpy as np
import pytest
from nvcc import machine_code, needs_nvcc
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion.config import configure
from tvm_fusion.core.constants.weight_names import WeightNames, tracking
from tvm_fusion.core.peer_memory import WEIGHT
from tvm_fusion.device import parse
from tvm_fusion.parallel.peer_sum_kernel import peer_sum
from tvm_fusion.parallel.peer_sums import PeerSums
from tvm_fusion.pipeline import stage

op = relax.op
H100 = parse("cuda:sm_90a")


def summed(shape=(1, 64), dtype="float16", *, add=True, norm=True, view=False, axis=-1):
    """half(rms_norm(half(residual + allreduce(x)))), or what of it is asked for."""
    x = relax.Var("x", relax.TensorType(shape, dtype))
    residual = relax.Var("residual", relax.TensorType(shape, "float32"))
    scale = relax.const(np.ones(shape[axis], "float32"))

    def body(emit, x, residual):
        total = emit(op.ccl.allreduce(x, "sum", True))
        if not add:
            return emit(op.exp(total))
        total = emit(op.add(residual, emit(op.astype(total, "float32"))))
        if not norm:
            return total
        rounded = emit(op.astype(emit(op.astype(total, dtype)), "float32"))
        normed = emit(op.nn.rms_norm(rounded, scale, axes=[axis], epsilon=1e-5))
        if view:
            normed = emit(op.reshape(normed, (-1, shape[-1])))
        return [total, emit(op.astype(normed, dtype))]

    return main_module([x, residual], body)


def summed_in_half(shape=(1, 64), dtype="float16", *, first=True, norm=True):
    """rms_norm(residual + allreduce(x)), all half, as transformers' models in half have it."""
    x, residual = (relax.Var(name, relax.TensorType(shape, dtype)) for name in ("x", "residual"))
    ones = np.ones(shape[-1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    scale = relax.const(ones, dtype)

    def body(emit, x, residual):
        total = emit(op.ccl.allreduce(x, "sum", True))
        total = emit(op.add(*((residual, total) if first else (total, residual))))
        if not norm:
            return [total, emit(op.exp(total))]
        normed = emit(op.nn.rms_norm(total, scale, axes=[-1], epsilon=1e-5))
        return [total, emit(op.reshape(normed, (-1, shape[-1])))]

    return main_module([x, residual], body)


def kernels(mod, target="cuda:sm_90a"):
    """Names of the kernels of our own, and of operators that are left."""
    with parse(target).tvm_target():
        mod = PeerSums(2)(mod)
    values = [binding.value for binding in mod["main"].body.blocks[0].bindings]
    calls = [value for value in values if isinstance(value, relax.Call)]
    names = [c.args[0].name_hint if c.op.name == "relax.call_tir" else c.op.name for c in calls]
    return [name.removeprefix("relax.") for name in names]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_sum_with_its_residual_and_norm_is_one_kernel(dtype):
    assert kernels(summed((2, 1, 64), dtype)) == ["peer_norm"]
    assert kernels(summed((1, 1, 64), dtype, view=True)) == ["peer_norm", "reshape"]
    assert kernels(summed(dtype=dtype, norm=False)) == ["peer_residual"]
    assert kernels(summed(dtype=dtype, add=False)) == ["peer_sum", "exp"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("first", [True, False])
def test_a_residual_in_half_is_added_in_the_kernel(dtype, first):
    assert kernels(summed_in_half(dtype=dtype, first=first)) == ["peer_norm", "reshape"]
    assert kernels(summed_in_half(dtype=dtype, first=first, norm=False)) == ["peer_residual", "exp"]


def test_a_sum_added_to_itself_has_no_residual():
    x = relax.Var("x", relax.TensorType((1, 64), "float16"))

    def doubled(emit, x):
        total = emit(op.ccl.allreduce(x, "sum", True))
        return emit(op.add(total, total))

    assert kernels(main_module([x], doubled)) == ["peer_sum", "add"]


def test_a_norm_of_another_axis_stays():
    assert kernels(summed((32, 64), axis=0))[0] == "peer_residual"


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (summed((33, 64)), "cuda:sm_90a"),  # more rows than blocks
        (summed((32, 4104)), "cuda:sm_90a"),  # more than 256 kB
        (summed((1, 12)), "cuda:sm_90a"),  # no whole vectors
        (summed(dtype="float32", add=False), "cuda:sm_90a"),
        (summed(), "cuda:sm_75"),  # no NVLink
        (summed(), "cpu:x86-64-v3"),
    ],
)
def test_other_sums_stay_those_of_the_collective_library(mod, target):
    assert kernels(mod, target)[0] == "ccl.allreduce"


def test_the_addresses_are_a_weight_of_its_own():
    names = WeightNames()
    with tracking(names), H100.tvm_target():
        mod = PeerSums(2)(summed())
    (found,) = [const for const, name in names.of(mod).items() if name == WEIGHT]
    assert [int(n) for n in found.value.shape] == [3]
    assert str(found.ty.dtype) == "int64"


@pytest.mark.parametrize("without", [[], ["peer_sums"]])
def test_the_rule_can_be_switched_off(without):
    config = configure(None, {"workers": 2, "without": without})
    names = [one.info.name for one in getattr(stage("rewrite", config), "passes", [])]
    assert names == ([] if without else ["Rewrite", "PeerSums"])


def test_the_kernel_launches_the_next_one_before_it_waits_for_peers():
    kernel = peer_sum((3, 4096), "float16", 2, "norm", 1e-5)
    text = kernel.script()
    assert text.index("launch_dependents") < text.index("tvm_fusion_peer_norm")
    assert isinstance(kernel, tirx.PrimFunc)
    assert len(kernel.params) == 6


@needs_nvcc
def test_ptxas_takes_the_kernels():
    forms = {"norm": (1, 4096), "residual": (4, 8192), "sum": (2, 200)}
    kernels = {f: peer_sum(s, "bfloat16", 4, f, 1e-5) for f, s in forms.items()}
    half = {"residual_dtype": "float16", "scale_dtype": "float16"}
    kernels["half"] = peer_sum((1, 4096), "float16", 2, "norm", 1e-5, **half)
    assert all(one.spilled_bytes == 0 for one in machine_code(kernels).values())
