"""A model for AMD GPUs whose kernels are numpy's, so that its artifact needs no linker for AMD."""

import ctypes
import struct

import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion.deploy.toolchain import rocm

ROWS, WIDTH, LAYERS = 8, 48, 3


class Kernels:
    """The kernels of the models here, on memory that must be the GPU's."""

    def __init__(self, library):
        self.library = library
        self.calls = []

    def __call__(self, code, name, grid, block, shared, arguments):
        self.calls.append((name, grid, block, arguments))
        pointers = struct.unpack_from(f"<{len(arguments) // 8}Q", arguments)
        if "softmax_matmul" in name:  # softmax(x @ a) @ b
            out, x, a, b = map(self.array, pointers, [(ROWS, WIDTH)] * 2 + [(WIDTH, WIDTH)] * 2)
            out[...] = softmax(x @ a) @ b
        elif "softmax" in name:
            out, x = (self.array(pointer, (ROWS, WIDTH)) for pointer in pointers)
            out[...] = softmax(x)
        else:
            raise ValueError(f"no such kernel: {name}")

    def array(self, address, shape):
        size = 4 * int(np.prod(shape))
        assert self.library.owns(address, size), f"{size} bytes at {address:#x} are not the GPU's"
        return np.frombuffer((ctypes.c_char * size).from_address(address), "float32").reshape(shape)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def chain_weights():
    generator = np.random.default_rng(0)
    shape = (2 * LAYERS, WIDTH, WIDTH)
    return {f"w{i}": w for i, w in enumerate(generator.standard_normal(shape).astype("float32"))}


def chain():
    """Softmax and products in turns: more kernels than are launched one by one."""
    nodes, x = [], "x"
    for i in range(2 * LAYERS):
        nodes += [("MatMul", [x, f"w{i}"], [f"m{i}"]), ("Softmax", [f"m{i}"], [f"s{i}"])]
        x = f"s{i}"
    shape = [ROWS, WIDTH]
    return onnx_model(nodes, [("x", T.FLOAT, shape)], [(x, T.FLOAT, shape)], chain_weights())


def chain_expected(x):
    for weight in chain_weights().values():
        x = softmax(x @ weight)
    return x


def export_unlinked(model, target, folder, **options):
    """Compile without a linker for AMD: code objects are what LLVM wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocm, "find_lld", lambda: ("none",))
        patch.setattr(rocm, "link_code_object", lambda _, data: data)
        return tvm_fusion.compile(model, target, **options).export(folder)
