"""What dense convolutions on CPUs prefetch: results stay right, only what is far is asked for."""

import dataclasses
import math
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from group_kernels import CPU
from tvm import tirx

from tests.schedule.convolution.conv_cases import Conv, check, claimed
from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.device import parse
from tvm_fusion.schedule.convolution.dense.config import ConvConfig
from tvm_fusion.schedule.convolution.dense.prefetch import Prefetch
from tvm_fusion.schedule.convolution.template import CpuConvolution

NONE = (0, 0, 0, 0)
EVERYTHING = Prefetch.WEIGHT | Prefetch.IMAGE | Prefetch.OPERANDS
V3 = parse("cpu:x86-64-v3")  # two vectors in a line
LINE = 16  # float32 elements
PREFETCH = re.compile(r"\tprefetch|\tprfm")


def with_l3(size):
    device = dataclasses.replace(CPU.device, l3_bytes=size)
    return dataclasses.replace(CPU, devices=(device,))


def prefetches(conv, l3_bytes):
    return claimed(conv.params(), conv.body, with_l3(l3_bytes)).details.config.prefetches


@pytest.mark.slow
@pytest.mark.parametrize(
    "conv",
    [
        Conv(40, 70, (9, 11), (1, 1), padding=NONE, residual=True, batch=3),
        Conv(40, 70, (9, 13), (1, 1), (2, 2), NONE, residual=True),
        Conv(40, 136, (7, 9), (1, 1), padding=NONE, groups=4, residual=True),
        Conv(20, 33, (7, 5), residual=True, batch=2),
    ],
)
def test_prefetches_change_no_result(conv):
    """Behind the last tile of the last task they are of addresses that nothing has."""
    claim = claimed(conv.params(), conv.body)
    flags = EVERYTHING if conv.window == (1, 1) else EVERYTHING & ~Prefetch.IMAGE
    config = dataclasses.replace(claim.details.config, prefetches=flags)
    low = ConvConfig(config.lanes, 1, 4, 1, 2, 2, flags)
    for one in (config, low):
        check(
            conv,
            claim=dataclasses.replace(
                claim, details=dataclasses.replace(claim.details, config=one)
            ),
        )


def test_what_is_larger_than_a_share_of_the_cache_is_prefetched():
    """One image of these is near, eight are not; the figures are bytes in blocks of 16 channels."""
    one = Conv(64, 256, (14, 14), (1, 1), padding=NONE, residual=True)
    eight = dataclasses.replace(one, batch=8)
    image, residual = (c * 14 * 14 * 4 for c in (64, 256))
    assert prefetches(one, 8 * residual) == Prefetch.NONE
    assert prefetches(one, 8 * residual - 8) == Prefetch.OPERANDS
    assert prefetches(eight, 64 * residual) == Prefetch.NONE
    assert prefetches(eight, 64 * image) == Prefetch.OPERANDS
    assert prefetches(eight, 64 * image - 8) == Prefetch.OPERANDS | Prefetch.IMAGE
    alone = dataclasses.replace(eight, residual=False)
    assert prefetches(alone, 8) == Prefetch.IMAGE


def test_copied_images_are_not_prefetched():
    """A task copies whole lines, which hardware follows."""
    assert prefetches(Conv(64, 32, (14, 14), batch=8), 8) == Prefetch.NONE


def test_pixels_and_operands_are_asked_for_once_a_line():
    """A tile of four pixels by two vectors: an instruction for each pixel, and for each line."""
    conv = Conv(64, 64, (12, 12), (1, 1), padding=NONE, residual=True, batch=2)
    claim = claimed(conv.params(), conv.body)
    lanes, counts = claim.details.config.lanes, []
    for flags in (Prefetch.NONE, Prefetch.IMAGE, Prefetch.OPERANDS):
        config = ConvConfig(lanes, 1, 4, 2, prefetches=flags)
        details = dataclasses.replace(claim.details, config=config)
        made = CpuConvolution().emit(dataclasses.replace(claim, details=details), CPU.tvm_target())
        func = made.kernels[0].func.with_attr("global_symbol", "main")
        built = tvm.tirx.build(
            tvm.IRModule({"main": func}), CPU.tvm_target(), pipeline="tvm_fusion"
        )
        counts.append(len(PREFETCH.findall(built.inspect_source("asm"))))
    assert counts[0] == 0
    assert counts[1] % 4 == 0 < counts[1]
    assert counts[2] % (4 * math.ceil(2 * lanes / LINE)) == 0 < counts[2]


@pytest.mark.parametrize(("window", "padding", "share"), [((1, 1), NONE, 1), ((3, 3), (1,) * 4, 6)])
def test_tiles_of_pixels_share_the_lines_of_the_next_weight(window, padding, share):
    """Of the next tile of channels, they ask for each line: once, where they divide it evenly."""
    conv = Conv(24, 48, (6, 7), window, padding=padding, block_in=8, block_out=8)
    claim = claimed(conv.params(), conv.body, V3)
    config = ConvConfig(8, 1, 4, 2, 6, 3, Prefetch.WEIGHT)  # one task of 6 x 2 tiles of pixels
    details = dataclasses.replace(claim.details, config=config)
    made = CpuConvolution().emit(dataclasses.replace(claim, details=details), V3.tvm_target())
    asked, (panels, blocks, *row) = lines_asked_for(made.kernels[0].func)
    lines = math.prod(row) // LINE
    asked = asked.reshape(panels + 1, blocks, lines)
    assert not asked[0].any()
    assert asked.sum() == panels * blocks * 12 * share
    assert (asked[1:, :, :-1] == 1).all()
    assert (asked[1:, :, -1] == 12 * share - lines + 1).all()


def lines_asked_for(func):
    """Run a kernel that counts its prefetches; their number by line, and the weight's shape."""
    (weight,) = {call.args[0].source for call in addresses(func.body)}
    shape = [int(d) for d in weight.ty.shape]
    size = (shape[0] + 1) * math.prod(shape[1:]) // LINE  # the last tile asks for one beyond
    counts = tirx.decl_buffer([size], "int32", "counts")

    def count(node):
        place = 0
        for call in addresses(node):
            for extent, i in zip(shape, call.args[0].indices, strict=True):
                place = place * extent + i
            line = tirx.floordiv(place, LINE)
            return tirx.BufferStore(counts, tirx.BufferLoad(counts, [line]) + 1, [line])
        return node

    body = tvm_ffi.structural_map(func.body, (tirx.Evaluate, count), order="post")
    counting = tirx.PrimFunc([*func.params, counts], body, attrs=func.attrs)
    mod = tvm.IRModule({"main": counting.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, V3.tvm_target(), pipeline="tvm_fusion")
    types = [(b.ty.shape, str(b.ty.dtype.dtype)) for b in [*func.params, counts]]
    given = [tvm.runtime.tensor(np.zeros([int(d) for d in s], dtype)) for s, dtype in types]
    built["main"](*given)
    return given[-1].numpy(), shape


def addresses(node):
    return [call for call in find(node, tvm.ir.Call) if call_name(call) == "address_of"]
