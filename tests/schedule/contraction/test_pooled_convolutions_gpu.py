"""Convolutions on tensor cores that pool their sums: all tiles, in the emulator, and on AMD's."""

from dataclasses import replace

import numpy as np
import pytest
from amd_code import run_on_amd
from emulator.launch import launch
from group_kernels import CUDA, group, tensor
from rounding import assert_sums_close
from tvm import relax

from tests.schedule.contraction.conv_graphs import laid_out
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu.emit import GpuContractionConfig
from tvm_fusion.schedule.contraction.gpu.product import read_product
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.gpu.tile_forms import implicit_form
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaWindowConfig
from tvm_fusion.schedule.index.inline import inlined
from tvm_fusion.schedule.stage.install import gather

pytestmark = pytest.mark.slow_beyond(3)

op = relax.op
TEMPLATE = GpuContraction()
CONVOLUTIONS = {2: op.nn.conv2d, 3: op.nn.conv3d}
ACTIVATIONS = {"relu": lambda y: y.clip(0), "silu": lambda y: y / (1 + np.exp(-y))}
# Image, weight, activation, pooling, its window.
CASES = {
    "largest": ((1, 64, 12, 20), (40, 64, 3, 3), "relu", "max", (2, 2)),
    "planes": ((1, 16, 3, 6, 4), (24, 16, 3, 3, 3), "relu", "max", (1, 2, 2)),
    "what may fall": ((1, 16, 8, 6), (24, 16, 3, 3), "silu", "max", (2, 2)),
    "mean": ((2, 16, 8, 6), (24, 16, 3, 3), "relu", "avg", (4, 2)),
    "odd image": ((1, 16, 9, 7), (24, 16, 3, 3), "relu", "max", (2, 2)),
    "volume": ((1, 16, 4, 6, 4), (24, 16, 3, 3, 3), "relu", "max", (2, 2, 2)),
}


def convolved(x, w):
    """Of any rank, padded by one pixel."""
    x = np.pad(x, [(0, 0), (0, 0), *[(1, 1)] * (x.ndim - 2)])
    y = np.zeros((len(x), len(w), *(e - 2 for e in x.shape[2:])))
    for tap in np.ndindex(w.shape[2:]):
        steps = (slice(t, t + e) for t, e in zip(tap, y.shape[2:], strict=True))
        part = x[(slice(None), slice(None), *steps)]
        y += np.einsum("nc...,kc->nk...", part, w[(slice(None), slice(None), *tap)])
    return y


def pooled(y, kind, window):
    reduce = np.max if kind == "max" else np.mean
    for axis, size in enumerate(window, 2):
        count = y.shape[axis] // size
        y = np.take(y, range(count * size), axis)
        y = reduce(y.reshape(*y.shape[:axis], count, size, *y.shape[axis + 1 :]), axis + 1)
    return y


class Drawn:
    """A case with what it computes, and how large its sums are."""

    def __init__(self, case):
        shape, weight, act, kind, window = CASES[case]
        rng = np.random.default_rng()
        x, w = (rng.standard_normal(s).astype("float16") for s in (shape, weight))
        bias = rng.standard_normal((1, weight[0], *[1] * len(window))).astype("float32")
        name = f"{kind}_pool{len(window)}d"

        def body(emit, x, b):
            convolve = CONVOLUTIONS[len(window)]
            y = emit(convolve(x, relax.const(w), padding=1, out_dtype="float32"))
            y = emit(getattr(op.nn, act)(emit(op.add(y, b))))
            return getattr(op.nn, name)(y, window, window)

        self.body, self.given = body, [x, bias]
        pairs = zip("xb", self.given, strict=True)
        self.params = [tensor(n, *x.shape, dtype=str(x.dtype)) for n, x in pairs]
        wide = x.astype("float64"), w.astype("float64")
        self.exact = pooled(ACTIVATIONS[act](convolved(*wide) + bias), kind, window)
        self.size = pooled(convolved(*map(np.abs, wide)), "max", window) + np.abs(bias)
        self.terms = int(np.prod(weight[1:])) + 8

    def check(self, made, members, run, layout, stored=None):
        """Run a kernel over images of a layout, and compare results in theirs."""
        stored = stored or layout
        given, images = [], iter(self.given)
        for position, value in enumerate(members.inputs):
            if value.constant is None:
                given.append(layout(next(images)))
            elif position in made.packing:
                given.append(gather(made.packing[position], value.constant.value).numpy())
            else:
                given.append(value.constant.value.numpy())
        result = np.full(stored(self.exact).shape, np.nan, "float32")
        run(made.kernels[0].func, *given, result)
        assert_sums_close(result, stored(self.exact), stored(self.size), self.terms)


def last(y):
    """Channels last in memory."""
    return np.ascontiguousarray(np.moveaxis(y, 1, -1))


def emulated(func, *arrays):
    launch(func, list(arrays), CUDA.tvm_target())


@pytest.mark.parametrize("case", CASES)
def test_windows_are_adjacent_rows(case):
    drawn = Drawn(case)
    members = laid_out(drawn.params, drawn.body)
    claim = TEMPLATE.claim(members, CUDA.device)
    assert claim.launches == 1
    assert claim.details.config.contraction.pool.size == np.prod(CASES[case][-1])
    drawn.check(TEMPLATE.emit(claim, CUDA.tvm_target()), members, emulated, last)


@pytest.mark.parametrize("case", ["largest", "planes", "volume"])
def test_windows_are_pixels_of_a_fragment(case):
    """Of sixteen rows wgmma has two by eight pixels of an image, two by two by four of a volume."""
    drawn = Drawn(case)
    members = laid_out(drawn.params, drawn.body)
    product = read_product(members, inlined(members.program), CUDA.device)
    form = implicit_form(product.by_pixels, product.constants, CUDA.device)
    assert isinstance(form.gemm, WgmmaWindowConfig)
    claim = TEMPLATE.claim(members, CUDA.device)
    program = form.copies.program(members.program)
    config = GpuContractionConfig(program, form.contraction, CUDA.device, form.gemm)
    details = replace(claim.details, config=config, copies=form.copies)
    made = TEMPLATE.emit(replace(claim, details=details), CUDA.tvm_target())
    drawn.check(made, members, emulated, last)


def test_images_of_the_graph_are_pooled():
    drawn = Drawn("odd image")
    members = group(drawn.params, drawn.body, CUDA)
    claim = TEMPLATE.claim(members, CUDA.device)
    made = TEMPLATE.emit(claim, CUDA.tvm_target())
    drawn.check(made, members, emulated, np.ascontiguousarray)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_amd_tiles_pool(arch):
    drawn, spec = Drawn("what may fall"), parse(f"rocm:{arch}")
    members = laid_out(drawn.params, drawn.body, only=("x",))
    claim = TEMPLATE.claim(members, spec.device)
    made = TEMPLATE.emit(claim, spec.tvm_target())
    assert claim.launches == 1

    def interpreted(func, *arrays):
        run_on_amd(func, arch, *arrays)

    drawn.check(made, members, interpreted, last, np.ascontiguousarray)


def test_a_largest_sum_comes_before_what_never_falls():
    """The bias and ReLU of one sum, not of four; what may fall is of each."""
    for case, is_behind in {"largest": True, "what may fall": False}.items():
        drawn = Drawn(case)
        members = laid_out(drawn.params, drawn.body)
        product = read_product(members, inlined(members.program), CUDA.device)
        assert (product.by_pixels is not None) == is_behind


@pytest.mark.parametrize(
    ("window", "stride", "found"), [((3, 3), (3, 3), "9 pixels"), ((2, 2), (1, 1), "overlap")]
)
def test_refuses_other_windows(window, stride, found):
    def body(emit, x):
        weight = relax.const(np.ones((24, 16, 3, 3), "float16"))
        y = emit(op.nn.conv2d(x, weight, padding=1, out_dtype="float32"))
        return op.nn.max_pool2d(y, window, stride)

    members = laid_out([tensor("x", 1, 16, 9, 9, dtype="float16")], body)
    refusal = TEMPLATE.claim(members, CUDA.device)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "pooling_windows"
    assert found in refusal.sentence
