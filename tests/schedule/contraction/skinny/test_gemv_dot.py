"""Words along K multiplied by AMD's dot products, in a skinny GEMM."""

import re

import numpy as np
import pytest
from amd_code import amd_module
from emulator.amd import run
from group_kernels import group, kernel, tensor
from tvm import relax

from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

op = relax.op
ROWS, TERMS, COLUMNS = 3, 512, 40


def compiled(arch, dtype, sums):
    """The module of a product with a transposed weight, and its PrimFunc."""
    spec = parse(f"rocm:{arch}")
    params = [tensor("x", ROWS, TERMS, dtype=dtype), tensor("w", COLUMNS, TERMS, dtype=dtype)]

    def body(emit, x, w):
        return op.matmul(x, emit(op.permute_dims(w)), sums)

    func = kernel(GpuContraction(), group(params, body, spec), spec)[1]
    return amd_module({"main": func}, arch), func


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize(
    ("dtype", "sums", "instruction"), [("float16", "float32", "dot2"), ("int8", "int32", "dot4")]
)
def test_every_word_takes_one_instruction(arch, dtype, sums, instruction):
    text = compiled(arch, dtype, sums)[0].inspect_source("asm")
    assert re.search(rf"v_(dual_)?{instruction}", text)
    assert not re.search(r"v_(dual_)?(pk_)?(fma|fmac|mad)_\w*(f32|i32|mix)", text)


def launch(module, func, named):
    """Run a kernel on arrays by the names of its parameters."""
    text = func.script()
    extents = {
        tag: int(count) for count, tag in re.findall(r"(\d+)\)?, thread=\"(\w+Idx\.x)\"", text)
    }
    found = re.search(r"^define .*@main_kernel\((.*)\)", module.inspect_source("hip"), re.MULTILINE)
    arguments = [named[name] for name in re.findall(r"%(\w+)", found[1])]
    grid, block = ((extents[f"{kind}Idx.x"], 1, 1) for kind in ("block", "thread"))
    run(module.inspect_source("asm"), "main_kernel", grid, block, arguments)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("dtype", "sums"), [("float16", "float32"), ("int8", "int32")])
def test_products_are_right(arch, dtype, sums):
    module, func = compiled(arch, dtype, sums)
    rng = np.random.default_rng()
    x = rng.integers(-9, 9, (ROWS, TERMS)).astype(dtype)
    w = rng.integers(-9, 9, (COLUMNS, TERMS)).astype(dtype)
    y = np.zeros((ROWS, COLUMNS), sums)
    launch(module, func, {"x": x, "w": w, func.params[-1].name: y})
    np.testing.assert_array_equal(y, x.astype("int64") @ w.T.astype("int64"))
