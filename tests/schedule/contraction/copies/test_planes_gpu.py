"""Convolutions of images whose channels are planes, on tensor cores without a copy."""

import pytest
from group_kernels import CUDA, group
from rounding import assert_sums_close

from tests.schedule.contraction.conv_graphs import launched, with_residual
from tvm_fusion.schedule.contraction.gpu.forms import choose
from tvm_fusion.schedule.contraction.gpu.product import read_product
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.contraction.tile.operand.chunks import OperandChunks
from tvm_fusion.schedule.index.inline import inlined

pytestmark = pytest.mark.slow_beyond(3)

TEMPLATE = GpuContraction()
CASES = {
    "3x3": ((1, 32, 9, 7), (24, 32, 3, 3), {}),
    "strided": ((2, 16, 11, 8), (40, 16, 3, 3), {"stride": 2}),
    "without padding": ((3, 8, 9, 7), (16, 8, 2, 4), {"padding": (0, 0)}),
    "dilated": ((1, 24, 9, 9), (16, 24, 3, 3), {"padding": (2, 2), "dilation": 2}),
    "many channels": ((1, 136, 6, 5), (72, 136, 3, 3), {}),
}


def claimed(shape, weight, options):
    params, body, *rest = with_residual(shape, weight, options)
    members = group(params, body, CUDA)
    return members, TEMPLATE.claim(members, CUDA.device), rest


@pytest.mark.parametrize("case", CASES)
def test_computes_the_convolution_in_one_kernel(case):
    members, claim, (arrays, exact, size) = claimed(*CASES[case])
    assert claim.launches == 1
    tile = claim.details.config.tile
    planes = [x for x in (OperandChunks(tile.problem, side) for side in (True, False))]
    assert sum(x.is_planar for x in planes) == 1
    made = TEMPLATE.emit(claim, CUDA.tvm_target())
    result = launched(made, members, arrays)
    _, weight, _ = CASES[case]
    assert_sums_close(result, exact, size, weight[1] * weight[2] * weight[3] + 2)


@pytest.mark.parametrize("channels", [3, 12])
def test_chunks_of_several_taps_are_no_planes(channels):
    """Eight channels of one pixel are a chunk; of others the image is copied before."""
    members, claim, _ = claimed((1, channels, 9, 7), (24, channels, 3, 3), {})
    product = read_product(members, inlined(members.program), CUDA.device)
    assert choose(product).name != "planes"
    assert claim.launches in (1, 2)
