"""What dense convolutions on CPUs prefetch: results stay right, only what is far is asked for."""

import dataclasses
import re

import pytest
import tvm
from group_kernels import CPU

from tests.schedule.convolution.conv_cases import Conv, check, claimed
from tvm_fusion.device import parse
from tvm_fusion.schedule.convolution.dense.config import ConvConfig
from tvm_fusion.schedule.convolution.dense.prefetch import Prefetch
from tvm_fusion.schedule.convolution.template import CpuConvolution

NONE = (0, 0, 0, 0)
EVERYTHING = Prefetch.WEIGHT | Prefetch.IMAGE | Prefetch.OPERANDS
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
    """A tile of pixels by vectors, each a line: one for each pixel, or for each of both."""
    spec = parse("cpu:x86-64-v4")
    conv = Conv(64, 64, (12, 12), (1, 1), padding=NONE, residual=True, batch=2)
    claim = claimed(conv.params(), conv.body, spec)
    counts = []
    for flags in (Prefetch.NONE, Prefetch.IMAGE, Prefetch.OPERANDS):
        config = ConvConfig(claim.details.config.lanes, 1, 4, 2, prefetches=flags)
        details = dataclasses.replace(claim.details, config=config)
        made = CpuConvolution().emit(dataclasses.replace(claim, details=details), spec.tvm_target())
        func = made.kernels[0].func.with_attr("global_symbol", "main")
        built = tvm.tirx.build(
            tvm.IRModule({"main": func}), spec.tvm_target(), pipeline="tvm_fusion"
        )
        counts.append(len(PREFETCH.findall(built.inspect_source("asm"))))
    assert counts[0] == 0
    assert counts[1] % 4 == 0 < counts[1]
    assert counts[2] % 8 == 0 < counts[2]
