"""Sums of few terms on GPUs: a thread computes each, in the emulator against float64."""

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA, group, tensor
from tvm import relax, tirx

from tvm_fusion.core.tir.loops import find
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

op = relax.op
TEMPLATE = GpuContraction()


def grid(func):
    """Blocks and threads of a launch."""
    bound = [loop for loop in find(func.body, tirx.For) if loop.thread_binding is not None]
    extents = {str(loop.thread_binding.thread_tag): int(loop.extent) for loop in bound}
    blocks = [e for tag, e in extents.items() if tag.startswith("blockIdx")]
    threads = [e for tag, e in extents.items() if tag.startswith("threadIdx")]
    return int(np.prod(blocks)), int(np.prod(threads))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 1])
def test_depthwise_convolutions_take_no_block_a_result(stride, before):
    """Padded on both sides, or as TensorFlow does behind the last element alone."""
    rng = np.random.default_rng()
    x = rng.standard_normal((1, 12, 13, 11)).astype("float16")
    w = rng.standard_normal((12, 1, 3, 3)).astype("float16")

    def body(emit, x):
        y = emit(op.nn.conv2d(x, relax.const(w), stride, (before, before, 1, 1), groups=12))
        return op.nn.relu(y)

    members = group([tensor("x", *x.shape, dtype="float16")], body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    (kernel,) = TEMPLATE.emit(claim, CUDA.tvm_target()).kernels
    rows, columns = ((e + before - 2) // stride + 1 for e in x.shape[2:])
    result = np.full((1, 12, rows, columns), 7, "float16")
    blocks, threads = grid(kernel.func)
    assert blocks <= -(-result.size // threads)
    inputs = [x if value.constant is None else w for value in members.inputs]
    launch(kernel.func, [*inputs, result], CUDA.tvm_target())
    padded = np.pad(x.astype("float64"), [(0, 0), (0, 0), (before, 1), (before, 1)])
    expected = np.zeros(result.shape)
    for r, s in np.ndindex(3, 3):
        part = padded[:, :, r::stride, s::stride][:, :, :rows, :columns]
        expected += part * w[None, :, 0, r, s, None, None].astype("float64")
    np.testing.assert_allclose(result, np.maximum(expected, 0), rtol=2e-3, atol=2e-3)
