"""Depthwise convolutions on CPUs in vectors of channels, against float64."""

import pytest
from group_kernels import CPU, group, tensor
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.schedule.convolution.conv_cases import Conv, check, may_be_refused
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.schedule.convolution.depthwise.cpu_config import DepthwiseConfig
from tvm_fusion.schedule.convolution.template import CpuConvolution

pytestmark = pytest.mark.slow_beyond(4)


def depthwise(c, size, *args, **changes):
    return Conv(c, c, size, *args, groups=c, **changes)


CASES = {
    "one tile": depthwise(32, (7, 7)),
    "odd channels, several tiles": depthwise(20, (13, 33), residual=True, batch=2),
    "strided, asymmetric padding": depthwise(17, (13, 30), stride=(2, 2), padding=(0, 1, 2, 0)),
    "5x5": depthwise(33, (9, 16), (5, 5), padding=(2, 2, 2, 2)),
    "dilated": depthwise(16, (12, 17), dilation=(2, 3), padding=(2, 3, 2, 3)),
    "a window larger than the image": depthwise(16, (5, 4), (7, 7), padding=(3, 3, 3, 3)),
    "one row of the window is inside": Conv(
        3, 3, (3, 6), (2, 2), (2, 2), (2, 2, 2, 1), (3, 1), groups=3
    ),
    "no padding": depthwise(48, (8, 35), padding=(0, 0, 0, 0)),
}


@pytest.mark.slow
@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("case", CASES)
def test_depthwise_against_float64(case):
    claim = check(CASES[case])
    assert isinstance(claim.details.config, DepthwiseConfig)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_task_widens_the_weight(dtype):
    """It is as small as a few pixels, and every row of every image would widen it anew."""
    conv = depthwise(32, (7, 7))
    members = group([tensor(p.name, *p.ty.shape, dtype=dtype) for p in conv.params()], conv.body)
    claim = CpuConvolution().claim(members, CPU.device)
    emission = CpuConvolution().emit(claim, CPU.tvm_target())
    packed = [p for k in emission.kernels for p in k.func.params if p.name.endswith("_packed")]
    assert [str(p.ty.dtype) for p in packed] == ["float32"]


@st.composite
def problems(draw):
    conv = depthwise(
        draw(st.integers(2, 40)),
        (draw(st.integers(2, 12)), draw(st.integers(2, 35))),
        (draw(st.integers(1, 4)), draw(st.integers(2, 4))),
        draw(st.sampled_from([(1, 1), (2, 2), (3, 1)])),
        tuple(draw(st.integers(0, 3)) for _ in range(4)),
        draw(st.sampled_from([(1, 1), (2, 2)])),
        residual=draw(st.booleans()),
    )
    assume(min(conv.out_size) > 0)
    return conv


@pytest.mark.slow
@settings(max_examples=25)
@given(problems())
def test_drawn_depthwise(conv):
    claim = CpuConvolution().claim(group(conv.params(), conv.body), CPU.device)
    if isinstance(claim, Refusal):
        assert may_be_refused(conv), claim
        return
    check(conv, claim=claim)
