"""A model for AMD GPUs of kernels that are numpy's here: its artifact needs no linker for AMD.

The kernels are scheduled already, so that they stay as they are: ``y = x * weight + 1``.
"""

import ctypes
import struct

import numpy as np
import pytest
from tvm import relax
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion.deploy.toolchain import rocm

ROWS, WIDTH, LAYERS = 8, 256, 6  # more kernels than are launched one by one
BYTES = 4 * ROWS * WIDTH
X, RESULT = "x", "output_0"


@T.prim_func(s_tir=True)
def scaled(
    x: T.Buffer((ROWS, WIDTH), "float32"),
    weight: T.Buffer((ROWS, WIDTH), "float32"),
    y: T.Buffer((ROWS, WIDTH), "float32"),
):
    T.func_attr({"tirx.is_scheduled": True})
    for block in T.thread_binding(ROWS, thread="blockIdx.x"):
        for thread in T.thread_binding(WIDTH, thread="threadIdx.x"):
            with T.sblock("scaled"):
                i, j = T.axis.remap("SS", [block, thread])
                y[i, j] = x[i, j] * weight[i, j] + T.float32(1)


def weights():
    generator = np.random.default_rng(0)
    return generator.standard_normal((LAYERS, ROWS, WIDTH)).astype("float32")


def chain():
    builder = relax.BlockBuilder()
    kernel, ty = builder.add_func(scaled, "scaled"), relax.TensorType((ROWS, WIDTH), "float32")
    x = relax.Var(X, ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for weight in weights():
                y = builder.emit(relax.call_tir(kernel, [y, relax.const(weight)], ty))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def expected(x):
    for weight in weights():
        x = x * weight + np.float32(1)
    return x


class Kernels:
    """What runs the kernel, on memory that must be the GPU's."""

    def __init__(self, fake):
        self._fake = fake

    def __call__(self, code, name, grid, block, shared, arguments):
        assert name.startswith("scaled")
        assert (grid, block, shared) == ((ROWS, 1, 1), (WIDTH, 1, 1), 0)
        weight, x, y = map(self._array, struct.unpack("<3Q", arguments))
        y[...] = x * weight + np.float32(1)

    def _array(self, address):
        assert self._fake.owns(address, BYTES), f"{address:#x} is not the GPU's"
        memory = (ctypes.c_char * BYTES).from_address(address)
        return np.frombuffer(memory, "float32").reshape(ROWS, WIDTH)


# The same in C, for programs without Python.
KERNEL_IN_C = f"""
int launch(const void* code, unsigned long code_bytes, const char* name, const unsigned* grid,
           const unsigned* block, unsigned shared, float* const* arguments, unsigned long bytes) {{
  if (bytes != 24) return 1;
  for (int i = 0; i < {ROWS * WIDTH}; ++i) arguments[2][i] = arguments[0][i] * arguments[1][i] + 1;
  return 0;
}}
"""


def export_unlinked(model, target, folder, **options):
    """Compile without a linker for AMD: code objects are what LLVM wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocm, "find_lld", lambda: ("none",))
        patch.setattr(rocm, "link_code_object", lambda _, data: data)
        return tvm_fusion.compile(model, target, **options).export(folder)
