"""Convolutions on tile registers against float64, with remainders in all directions."""

import dataclasses
import itertools

import ml_dtypes  # noqa: F401  numpy's bfloat16
import pytest
from emulator.tiles import TILES, tiles_of
from tvm import relax

from tests.schedule.convolution.conv_cases import Conv, check, claimed
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.convolution.template import CpuConvolution
from tvm_fusion.schedule.convolution.tiles.config import TileConvConfig, default

pytestmark = pytest.mark.slow_beyond(3)

NONE = (0, 0, 0, 0)
CPU = parse(TILES)
XEON = parse("cpu:sapphirerapids")
CASES = {
    "odd channels, batch": Conv(20, 33, (13, 5), batch=2),
    "few channels of a plain image": Conv(
        3, 40, (17, 37), (7, 7), (2, 2), (3, 3, 3, 3), block_in=0
    ),
    "rows of 33 pixels": Conv(32, 64, (4, 33)),
    "two rows of tiles, an odd one is left": Conv(24, 48, (7, 7)),
    "stride, uneven padding": Conv(17, 33, (9, 6), stride=(2, 2), padding=(0, 1, 2, 1)),
    "dilated": Conv(32, 20, (9, 11), dilation=(2, 2), padding=(2, 2, 2, 2)),
    "groups": Conv(64, 64, (7, 9), groups=4),
    "groups of tiles of channels": Conv(128, 128, (5, 7), stride=(2, 2), groups=2),
    "pixels in place": Conv(64, 40, (5, 9), (1, 1), padding=NONE, block_in=64),
    "a window of one row": Conv(32, 16, (5, 19), (1, 3), padding=(0, 1, 0, 1)),
    "plain throughout": Conv(40, 24, (7, 13), block_in=0, block_out=0),
}


def checked(conv, claim=None, spec=CPU):
    """Compare with float64, interpreted and on this machine's tiles alike."""
    found = check(conv, spec=spec, claim=claim)
    assert isinstance(found.details.config, TileConvConfig)
    return []


@pytest.mark.parametrize(("dtype", "case"), [*itertools.product(("bfloat16", "uint8"), CASES)])
def test_results(dtype, case, tiles):
    conv = dataclasses.replace(CASES[case], dtype=dtype)
    tiles.run(lambda: checked(conv))


@pytest.mark.parametrize("case", ["groups", "odd channels, batch", "dilated"])
def test_float16(case, tiles):
    conv = dataclasses.replace(CASES[case], dtype="float16")
    target, feature = tiles_of("float16")
    tiles.run(lambda: checked(conv, spec=parse(target)), feature)


@pytest.mark.slow
@pytest.mark.parametrize(
    "conv",
    [
        Conv(22, 70, (9, 18), dtype="bfloat16"),
        Conv(320, 320, (6, 5), stride=(2, 2), groups=5, dtype="bfloat16"),
    ],
    ids=["dense", "groups"],
)
def test_every_configuration_is_right(conv, tiles):
    template, device = CpuConvolution(), CPU.device
    claim = claimed(conv.params(), conv.body, CPU)
    shapes = {}
    for config in template.configs(claim, device):
        sizes = ("height", "width", "vectors", *(["chunk"] if conv.groups > 1 else []))
        shapes.setdefault(tuple(config[name] for name in sizes), config)
    for config in shapes.values():
        changed = template.configure(claim, config, device)
        assert not isinstance(changed, Refusal)
        tiles.run(lambda changed=changed: checked(conv, changed))


@pytest.mark.parametrize("case", CASES)
def test_tiles_are_released_once_a_task(case):
    """On any machine: what is emitted for a CPU with tiles."""
    conv = dataclasses.replace(CASES[case], dtype="bfloat16")
    claim = claimed(conv.params(), conv.body, XEON)
    assert isinstance(claim.details.config, TileConvConfig)
    (made,) = CpuConvolution().emit(claim, XEON.tvm_target()).kernels
    text = made.func.script()
    assert text.count("llvm.x86.tilerelease") == 1
    assert text.count("llvm.x86.ldtilecfg") >= 1
    assert "llvm.x86.tdpbf16ps" in text


def claimed_with(prologue, **changes):
    conv = dataclasses.replace(Conv(64, 512, (14, 14), (1, 1), padding=NONE), **changes)
    body = lambda emit, x: conv.body(emit, x, prologue=prologue)  # noqa: E731
    return claimed(conv.params(), body, XEON)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_pixels_of_all_channels_are_read_in_place(dtype):
    claim = claimed_with(lambda emit, x: x, dtype=dtype, block_in=64)
    assert claim.details.tiles.in_place


def test_lines_have_the_channels_of_a_task_alone():
    conv = Conv(256, 256, (5, 7), groups=4, dtype="uint8")
    tiles = claimed(conv.params(), conv.body, XEON).details.tiles
    assert tiles.single.block == tiles.pixel == 64


def test_tasks_copy_computed_images_less_often():
    """What is computed while lines are copied is done once for each chunk of channels."""
    device = dataclasses.replace(XEON.device, cores=16)

    def chunks(prologue):
        tiles = claimed_with(prologue, c=512, dtype="bfloat16").details.tiles
        config = default(tiles, device)
        return 512 // (16 * config.vectors * config.chunk)

    op, two = relax.op, relax.const(2, "bfloat16")
    assert chunks(lambda emit, x: emit(op.tanh(emit(op.multiply(x, two))))) < chunks(
        lambda emit, x: x
    )


def test_images_whose_channels_are_far_apart_cost_more():
    blocked, plain = (claimed_with(lambda emit, x: x, dtype="uint8", block_in=n) for n in (16, 0))
    assert plain.priced_flops > blocked.priced_flops


@pytest.mark.parametrize("name", ["cpu:x86-64-v4", "cpu:znver5"])
def test_vectors_where_there_are_no_tiles(name):
    spec, conv = parse(name), Conv(32, 32, (7, 7), dtype="bfloat16")
    claim = claimed(conv.params(), conv.body, spec)
    assert claim.details.tiles is None
