"""What all rows have in common: layouts hold every element, and some device has the instruction."""

import numpy as np
import pytest

from tests.schedule.instructions.registers import held, name_of
from tvm_fusion.device import parse
from tvm_fusion.device.table import GPUS
from tvm_fusion.schedule.instructions.instruction import Instruction
from tvm_fusion.schedule.instructions.layout import layout
from tvm_fusion.schedule.instructions.table import INSTRUCTIONS, find, has, instructions_of, newest

NAMES = ("nehalem", "haswell", "sapphirerapids", "graniterapids", "znver4", "neoverse-n1")
CPUS = [parse(f"cpu:{arch}") for arch in NAMES]
DEVICES = [*GPUS.values(), *(cpu.device for cpu in CPUS)]


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=name_of)
def test_every_element_is_held(row):
    for layout_ in filter(None, (row.a, row.b, row.c)):
        numbers = np.arange(np.prod(layout_.shape)).reshape(layout_.shape)
        copies = 2 if row.family == "wmma" and layout_ is not row.c else 1
        times = np.bincount(held(layout_, numbers).ravel(), minlength=numbers.size)
        assert (times == copies).all()


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=name_of)
def test_counts_are_those_of_places(row):
    for layout_ in filter(None, (row.a, row.b, row.c)):
        shape = layout_.lane_count, layout_.per_lane
        i, j = (np.broadcast_to(x, shape) for x in layout_.place(*np.indices(shape)))
        for place, count in ((i, layout_.lanes_per_row), (j, layout_.lanes_per_column)):
            for number in range(int(place.max()) + 1):
                assert (place == number).any(axis=1).sum() == count
        starts = np.arange(0, layout_.per_lane, layout_.run)[:, None]
        runs = starts + np.arange(layout_.run)
        assert (i[0][runs] == i[0][starts]).all()
        assert (j[0][runs] - j[0][starts] == np.arange(layout_.run)).all()
    i, j = (np.broadcast_to(x, row.a.per_lane) for x in row.a.place(0, np.arange(row.a.per_lane)))
    assert (i == i[0]).sum() == row.k_per_lane


def test_names_are_unique():
    assert len({(row.name, row.kind) for row in INSTRUCTIONS}) == len(INSTRUCTIONS)


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=name_of)
def test_a_device_has_it(row):
    """And finds it by types of A and B, among others."""
    device = next(device for device in DEVICES if has(device, row))
    for a, b in ((row.a_types[0], row.b_types[-1]), (row.a_types[-1], row.b_types[0])):
        assert row in instructions_of(device, a, b)


@pytest.mark.parametrize(
    ("target", "family", "a_dtype", "b_dtype", "shape"),
    [
        ("cuda:sm_75", "mma.sync", "float16", "float16", (16, 8, 8)),
        ("cuda:sm_75", "mma.sync", "bfloat16", "bfloat16", None),
        ("cuda:sm_80", "mma.sync", "float16", "float16", (16, 8, 16)),
        ("cuda:sm_80", "mma.sync", "float8_e4m3fn", "float8_e5m2", None),
        ("cuda:sm_80", "wgmma", "float16", "float16", None),
        ("cuda:sm_90a", "wgmma", "uint8", "int8", (64, 256, 32)),
        ("rocm:gfx90a", "mfma", "int8", "int8", (16, 16, 16)),
        ("rocm:gfx942", "mfma", "int8", "int8", (16, 16, 32)),
        ("rocm:gfx1100", "wmma", "int8", "uint8", (16, 16, 16)),
        ("cpu:nehalem", "dot", "int16", "int16", (1, 4, 2)),
        ("cpu:nehalem", "dot", "float32", "float32", None),
        ("cpu:haswell", "dot", "float32", "float32", (1, 8, 1)),
        ("cpu:alderlake", "dot", "uint8", "int8", (1, 8, 4)),
        ("cpu:cascadelake", "dot", "uint8", "int8", (1, 16, 4)),
        ("cpu:cascadelake", "dot", "int8", "uint8", None),
        ("cpu:sapphirerapids", "amx", "int8", "uint8", (16, 16, 64)),
        ("cpu:sapphirerapids", "amx", "bfloat16", "bfloat16", (16, 16, 32)),
        ("cpu:sapphirerapids", "amx", "float16", "float16", None),
        ("cpu:graniterapids", "amx", "float16", "float16", (16, 16, 32)),
    ],
)
def test_the_best_of_a_device(target, family, a_dtype, b_dtype, shape):
    found = find(parse(target).device, family, a_dtype, b_dtype)
    assert (found and (found.m, found.n, found.k)) == shape


def test_the_newest_shape():
    assert newest("mma.sync", "float16", "float16").k == 16


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (layout([], [(4, 0, 1)]), layout([], [(4, 1, 0)]), layout([], [(8, 0, 1)])),
        (layout([(4, 0, 1)], []), layout([], [(4, 1, 0), (8, 0, 1)]), layout([], [(8, 0, 1)])),
        (layout([], [(4, 0, 1)]), None, layout([], [(8, 0, 1)])),
    ],
    ids=["B is no k x n", "lanes of A alone", "B is nowhere"],
)
def test_rows_that_contradict_themselves(a, b, c):
    with pytest.raises(ValueError, match=r"^x: "):
        Instruction("dot", "x", 1, 8, 4, ("int8",), ("int8",), "int8", "int32", a, b, c)
