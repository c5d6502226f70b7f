"""Convolutions of few channels: a partial im2col of the image, and a GEMM over its runs."""

from dataclasses import replace

import numpy as np
import pytest
from emulator.launch import launch
from group_kernels import CUDA, group, run_all, tensor
from rounding import assert_sums_close
from tvm import relax

from tests.schedule.contraction.conv_graphs import NHWC, with_residual
from tvm_fusion.program.layouts import Layout
from tvm_fusion.program.variant import variant
from tvm_fusion.schedule.contraction.copies.partial_im2col import partial_im2col
from tvm_fusion.schedule.contraction.gpu import space as gemm_configs_gpu
from tvm_fusion.schedule.contraction.gpu import tile_forms as tile_choice
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.problem.sum_of_products import analyse
from tvm_fusion.schedule.contraction.problem.template import constants_of
from tvm_fusion.schedule.contraction.wgmma.config import WgmmaWindowConfig
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
TEMPLATE, TARGET = GpuContraction(), CUDA.tvm_target()
CASES = {
    "7x7": ((2, 3, 23, 17), (24, 3, 7, 7), {"stride": 2, "padding": (3, 3)}),
    "3x3": ((1, 3, 13, 18), (16, 3, 3, 3), {"stride": 2}),
    "4 channels": ((3, 4, 9, 11), (40, 4, 3, 3), {}),
    "1 channel": ((2, 1, 12, 13), (16, 1, 5, 5), {"padding": (2, 2)}),
    "without padding": ((2, 3, 14, 21), (16, 3, 4, 6), {"stride": 3, "padding": (0, 0)}),
    "5x2": ((1, 5, 11, 10), (32, 5, 5, 2), {"padding": (2, 1)}),
    "1x3": ((2, 12, 7, 15), (16, 12, 1, 3), {"padding": (0, 1)}),
}


def build(shape, weight, options, is_nchw=False, dtype="float16", drawn=None):
    """The group, its inputs, the sums in float64, and those of absolute values.

    The image is in the order of the graph; results, and what is added to them, are or are not.
    """
    params, body, arrays, exact, size = with_residual(shape, weight, options, dtype, drawn)
    members = group(params, body, CUDA)
    order = (0, 1, 2, 3) if is_nchw else NHWC
    if not is_nchw:
        images = [v for v in (*members.inputs, *members.outputs) if v.constant is None]
        members = variant(members, {v: Layout(0) for v in images if v.name != "x"}).group
    arrays["r"] = arrays["r"].transpose(order)
    return members, arrays, exact.transpose(order), size.transpose(order)


@pytest.fixture(autouse=True)
def _copies_are_free(monkeypatch):
    """Copies are slower than the rest of so small a product."""
    monkeypatch.setattr(tile_choice, "copies_clocks", lambda *_: -1e9)


@pytest.fixture(params=["wgmma", "mma.sync"])
def device(request, monkeypatch):
    """Of which so small a product takes the one or the other."""
    if request.param == "wgmma":
        monkeypatch.setattr(gemm_configs_gpu, "estimated_clocks", lambda *_: 1e30)
        return CUDA.device
    return replace(CUDA.device, tma=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_nchw", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_computes_the_convolution(case, is_nchw, device):
    members, arrays, exact, size = build(*CASES[case], is_nchw=is_nchw)
    claim = TEMPLATE.claim(members, device)
    tile = claim.details.config.tile
    assert claim.launches == 2
    assert not tile.problem.staged_a
    assert not tile.problem.staged_b
    (found,) = run_all(members, TEMPLATE.emit(claim, TARGET), arrays)
    assert_sums_close(found, exact, size, tile.problem.k + 2)


def test_tiles_of_runs(device):
    """Rows of a tile of wgmma are a rectangle of pixels."""
    members, arrays, exact, size = build((2, 3, 37, 41), (64, 3, 3, 3), {"stride": 2})
    claim = TEMPLATE.claim(members, device)
    tile = claim.details.config.tile
    assert isinstance(tile, WgmmaWindowConfig) == device.tma
    assert tile.problem.k == 3 * 16
    (found,) = run_all(members, TEMPLATE.emit(claim, TARGET), arrays)
    assert_sums_close(found, exact, size, tile.problem.k + 2)


def test_bfloat16(device):
    members, arrays, exact, size = build(*CASES["7x7"], dtype="bfloat16")
    claim = TEMPLATE.claim(members, device)
    (found,) = run_all(members, TEMPLATE.emit(claim, TARGET), arrays)
    assert_sums_close(found, exact, size, claim.details.config.tile.problem.k + 2)


def test_infinities_stay_in_their_windows(device):
    """Runs end with the window: a zero weight does not meet the next pixel."""

    def with_infinity(x):
        x[0, 1, 6, 7] = np.inf
        return x

    shape, weight, options = CASES["7x7"]
    members, arrays, exact, size = build(shape, weight, options, drawn=with_infinity)
    (found,) = run_all(members, TEMPLATE.emit(TEMPLATE.claim(members, device), TARGET), arrays)
    sees = np.zeros(found.shape[:3], bool)
    rows = [y for y in range(found.shape[1]) if 0 <= 6 + 3 - 2 * y < 7]
    columns = [x for x in range(found.shape[2]) if 0 <= 7 + 3 - 2 * x < 7]
    sees[0, min(rows) : max(rows) + 1, min(columns) : max(columns) + 1] = True
    assert not np.isfinite(found[sees]).any()
    assert_sums_close(found[~sees], exact[~sees], size[~sees], 7 * 32 + 2)


def test_the_copy():
    """Columns are windows of rows, with zeros around the image and behind the last term."""
    shape, weight, options = CASES["7x7"]
    members, arrays, _exact, _size = build(shape, weight, options)
    contraction = analyse(members.program, inlined(members.program))
    copies = partial_im2col(contraction, constants_of(members))
    func = copies.kernel()
    (height, width), depth = shape[2:], 32  # pixels, two columns apart, are 128 bytes apart
    extents = [int(d) for d in copies.copies[0].ty.shape]
    found = np.full(extents, np.nan, "float16")
    launch(func, [arrays["x"], found], TARGET)
    rows, columns = (height + 6 - 7) // 2 + 1, (width + 6 - 7) // 2 * 2 + 7
    assert extents == [shape[0], rows, columns * depth]
    around = np.pad(arrays["x"], [(0, 0), (0, 0), (3, 3), (3, 3)])
    expected = np.zeros((shape[0], rows, columns, depth), "float16")
    for r in range(7):
        part = around[:, :, r : r + 2 * rows - 1 : 2, :columns]
        for c in range(3):
            expected[..., c * 7 + r] = part[:, c]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize(("case", "depth"), [("7x7", 32), ("3x3", 16), ("1x3", 16)])
def test_rows_that_copies_read_are_aligned(case, depth):
    """Rows of the weight at lines of memory, and runs of pixels where few elements are added."""
    members = build(*CASES[case])[0]
    contraction = analyse(members.program, inlined(members.program))
    image, weight = partial_im2col(contraction, constants_of(members)).copies
    columns = CASES[case][1][3]
    assert int(weight.ty.shape[-1]) == -(-columns * depth // 64) * 64
    assert int(image.ty.shape[-1]) % depth == 0


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (((1, 3, 13, 9), (24, 3, 3, 3), {"dilation": 2, "padding": (2, 2)}), "has holes"),
        (((1, 6, 9, 9), (16, 3, 3, 3), {"groups": 2}), "a batched product"),
        (((1, 24, 9, 9), (16, 24, 5, 5), {}), "has 120 terms, more than 96"),
        (((1, 3, 9, 9), (16, 3, 3, 1), {"padding": (1, 0)}), "0 axes of the window move"),
        (((1, 3, 9, 9), (16, 3, 3, 3), {}, False, "float32"), "of float32, not a half type"),
    ],
    ids=["holes", "groups", "many channels", "one column", "float32"],
)
def test_what_has_no_runs(case, why):
    members = build(*case)[0]
    contraction = analyse(members.program, inlined(members.program))
    assert why in partial_im2col(contraction, constants_of(members)).sentence


def test_weights_that_are_not_known_are_not_packed():
    members = build(*CASES["3x3"])[0]
    contraction = analyse(members.program, inlined(members.program))
    refusal = partial_im2col(contraction, ())
    assert refusal.sentence == "Neither operand is a plain constant."


def test_an_image_that_the_epilogue_reads_is_not_copied():
    x = tensor("x", 1, 3, 9, 9, dtype="float16")
    w = relax.const(np.ones((3, 3, 3, 3), "float16"))

    def body(emit, x):
        return op.add(emit(op.nn.conv2d(x, w, padding=1, out_dtype="float16")), x)

    members = group([x], body, CUDA)
    contraction = analyse(members.program, inlined(members.program))
    refusal = partial_im2col(contraction, constants_of(members))
    assert refusal.sentence == "The epilogue reads an operand, too."
