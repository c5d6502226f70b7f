"""Loop nests and hidden buffers of hand-written PrimFuncs with known answers."""

import pytest
import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target

from tvm_fusion.deploy.count.host import TILE_BYTES, Profile
from tvm_fusion.deploy.count.nests import nest_profile

CPU = Target("llvm")
ROWS, COLUMNS = 300, 500
SIZE = ROWS * COLUMNS * 4


def profile(func: tirx.PrimFunc) -> Profile:
    return nest_profile(func, "f", CPU)


def launches(func: tirx.PrimFunc) -> int:
    return sum(profile(func).launches.values())


@T.prim_func(s_tir=True)
def three_stages(x: T.Buffer((300, 500), "float32"), y: T.Buffer((300, 500), "float32")):
    a = T.sblock_alloc_buffer((300, 500))
    b = T.sblock_alloc_buffer((300, 500))
    for i, j in T.grid(300, 500):
        with T.sblock("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            a[vi, vj] = T.exp(x[vi, vj])
    for i, j in T.grid(300, 500):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] + T.float32(1)
    for i, j in T.grid(300, 500):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = b[vi, vj] * a[vi, vj]


def test_stages_in_sequence_are_kernels_and_their_buffers_count() -> None:
    found = profile(three_stages)
    assert found.launches == {("a", "kernel"): 1, ("b", "kernel"): 1, ("y", "kernel"): 1}
    assert found.hidden_bytes == 2 * SIZE


def test_inlined_stage_is_gone() -> None:
    schedule = Schedule(three_stages)
    schedule.compute_inline(schedule.get_sblock("b"))
    found = profile(schedule.mod["main"])
    assert found.launches == {("a", "kernel"): 1, ("y", "kernel"): 1}
    assert found.hidden_bytes == SIZE


def in_tiles(rows: int) -> tirx.PrimFunc:
    """All stages inside one parallel loop over row tiles."""
    schedule = Schedule(three_stages)
    tile = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, rows])[0]
    schedule.parallel(tile)
    schedule.compute_at(schedule.get_sblock("b"), tile)
    schedule.compute_at(schedule.get_sblock("a"), tile)
    return schedule.mod["main"]


def test_stages_computed_in_a_tile_belong_to_one_kernel() -> None:
    found = profile(in_tiles(10))
    assert found.launches == {("y", "kernel"): 1}
    assert found.hidden_bytes == 0


def test_buffer_larger_than_a_tile_counts_for_every_trip() -> None:
    assert 150 * COLUMNS * 4 > TILE_BYTES
    found = profile(in_tiles(150))
    assert sum(found.launches.values()) == 1
    assert found.hidden_bytes == 2 * SIZE


def test_loop_of_one_trip_around_stages_hides_nothing() -> None:
    found = profile(in_tiles(300))
    assert sum(found.launches.values()) == 3
    assert found.hidden_bytes == 2 * SIZE


def test_parallel_regions_in_a_serial_loop_multiply() -> None:
    @T.prim_func(s_tir=True)
    def steps(x: T.Buffer((16, 64), "float32"), y: T.Buffer((16, 64), "float32")):
        for t in T.serial(16):
            for i in T.parallel(64):
                with T.sblock("x"):
                    vt, vi = T.axis.remap("SS", [t, i])
                    x[vt, vi] = x[vt, vi] * T.float32(2)
            for i in T.parallel(64):
                with T.sblock("y"):
                    vt, vi = T.axis.remap("SS", [t, i])
                    y[vt, vi] = x[vt, vi] + T.float32(1)

    assert profile(steps).launches == {("x", "kernel"): 16, ("y", "kernel"): 16}


def test_reduction_initialised_apart_sweeps_twice() -> None:
    @T.prim_func(s_tir=True)
    def row_sum(x: T.Buffer((300, 500), "float32"), y: T.Buffer((300,), "float32")):
        for i, k in T.grid(300, 500):
            with T.sblock("y"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vi, vk]

    assert launches(row_sum) == 1
    schedule = Schedule(row_sum)
    block = schedule.get_sblock("y")
    schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    assert launches(schedule.mod["main"]) == 2


def test_scalar_function_is_one_kernel() -> None:
    @T.prim_func(s_tir=True)
    def scalar(x: T.Buffer((), "float32"), y: T.Buffer((), "float32")):
        with T.sblock("y"):
            y[()] = x[()] + T.float32(1)

    assert profile(scalar).launches == {("y", "kernel"): 1}


@pytest.mark.parametrize("intrinsic", ["packed", "extern"])
def test_foreign_call_is_a_library_call(intrinsic: str) -> None:
    @T.prim_func(s_tir=True)
    def packed(x: T.Buffer((64,), "float32")):
        T.evaluate(T.call_packed("some.library.routine", x.data))

    @T.prim_func(s_tir=True)
    def extern(x: T.Buffer((64,), "float32")):
        T.evaluate(T.call_extern("int32", "some.library.routine", x.data))

    func = {"packed": packed, "extern": extern}[intrinsic]
    assert profile(func).launches == {("some.library.routine", "library"): 1}


def test_symbolic_extent_left_open_is_a_caveat() -> None:
    @T.prim_func(s_tir=True)
    def two_stages(x_handle: T.handle, y_handle: T.handle):
        n = T.int64()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        a = T.sblock_alloc_buffer((n,))
        for i in range(n):
            with T.sblock("a"):
                vi = T.axis.spatial(n, i)
                a[vi] = T.exp(x[vi])
        for i in range(n):
            with T.sblock("y"):
                vi = T.axis.spatial(n, i)
                y[vi] = a[vi] + a[n - T.int64(1) - vi]

    found = profile(two_stages)
    assert sum(found.launches.values()) == 2
    assert len(found.caveats) == 1
    bound = two_stages.specialize(
        {p: tvm.tirx.decl_buffer((T.int64(9),), "float32") for p in two_stages.params}
    )
    assert profile(bound).hidden_bytes == 36
