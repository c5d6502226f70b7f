"""Which TensorIR is a map or a reduction, and which is refused and why."""

import numpy as np
import pytest
from programs import check_rows, run
from relax_modules import main_module
from rounding import assert_sums_close
from tvm import relax, tirx
from tvm.script import tirx as T

from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.program.stage import Unstructured
from tvm_fusion.program.stages.compose import compose
from tvm_fusion.program.stages.parse import parse


def compose_alone(func: tirx.PrimFunc, *inputs: relax.TensorType, out: relax.TensorType):
    """One operator that calls hand-written TensorIR."""
    builder = relax.BlockBuilder()
    gvar = builder.add_func(func, "custom")
    params = [relax.Var(f"p{k}", t) for k, t in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.call_tir(gvar, params, out))
        builder.emit_func_output(result)
    mod = builder.get()
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    group = Group(graph.operators)
    program = compose(group.members, group.inputs, group.outputs)
    check_rows(program)
    return program


def f32(*shape):
    return relax.TensorType(shape, "float32")


@T.prim_func(s_tir=True)
def narrow_iterators(x: T.Buffer((6, 5), "float32"), y: T.Buffer((5, 6), "float32")):
    for i, j in T.grid(6, 5):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vj, vi] = T.if_then_else(vi < 2, x[vi, vj], T.Cast("float32", vi * 10 + vj))


def test_narrow_iterators_and_transposed_write():
    program = compose_alone(narrow_iterators, f32(6, 5), out=f32(5, 6))
    x = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")
    i, j = np.indices((6, 5))
    np.testing.assert_array_equal(run(program, [x])[0], np.where(i < 2, x, i * 10 + j).T)
    assert all(str(a.var.ty.dtype) == "int64" for a in program.stages[0].axes)


@T.prim_func(s_tir=True)
def packed_write(x: T.Buffer((6, 10), "float32"), y: T.Buffer((2, 6, 5), "float32")):
    for i, j in T.grid(T.int64(6), T.int64(10)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vj // T.int64(5), vi, vj % T.int64(5)] = x[vi, vj] + T.float32(1)


def test_write_index_is_inverted():
    program = compose_alone(packed_write, f32(6, 10), out=f32(2, 6, 5))
    x = np.random.default_rng(0).standard_normal((6, 10)).astype("float32")
    np.testing.assert_allclose(run(program, [x])[0], x.reshape(6, 2, 5).transpose(1, 0, 2) + 1)


@T.prim_func(s_tir=True)
def fused_loops(x: T.Buffer((6, 4), "float32"), y: T.Buffer((6,), "float32")):
    for f in range(24):
        with T.sblock("b"):
            vi = T.axis.spatial(6, f // 4)
            vk = T.axis.reduce(4, f % 4)
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


def test_loops_that_enumerate_the_iterators_otherwise():
    program = compose_alone(fused_loops, f32(6, 4), out=f32(6))
    x = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    assert_sums_close(run(program, [x])[0], x.astype("float64").sum(1), np.abs(x).sum(1), 4)


@T.prim_func(s_tir=True)
def unit_reduction(x: T.Buffer((5, 1), "float32"), y: T.Buffer((5, 1), "float32")):
    for i, j, k in T.grid(T.int64(5), T.int64(1), T.int64(1)):
        with T.sblock("b"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(-1)
            y[vi, vj] = T.max(y[vi, vj], x[vi, vk])


def test_reduction_over_nothing_is_a_map():
    program = compose_alone(unit_reduction, f32(5, 1), out=f32(5, 1))
    (stage,) = program.stages
    assert stage.is_map
    assert len(stage.axes) == 1
    x = np.array([[-3.0], [2], [-0.5], [-1], [7]], "float32")
    np.testing.assert_array_equal(run(program, [x])[0], np.maximum(x, -1))


@T.prim_func(s_tir=True)
def shifted_iterators(x: T.Buffer((8,), "float32"), y: T.Buffer((5,), "float32")):
    for i in range(T.int64(5)):
        with T.sblock("b"):
            vi = T.axis.spatial((T.int64(2), T.int64(7)), i + T.int64(2))
            y[vi - T.int64(2)] = x[vi]


@T.prim_func(s_tir=True)
def scan(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            y[vi] = x[vi] + T.if_then_else(vi > T.int64(0), y[vi - T.int64(1)], T.float32(0))


@T.prim_func(s_tir=True)
def scatter(x: T.Buffer((8,), "float32"), k: T.Buffer((8,), "int64"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            y[k[vi]] = x[vi]


@T.prim_func(s_tir=True)
def overlapping_write(x: T.Buffer((4, 5), "float32"), y: T.Buffer((8,), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(5)):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi + vj] = x[vi, vj]


@T.prim_func(s_tir=True)
def partial_write(x: T.Buffer((4,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(4)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(4), i)
            y[vi * T.int64(2)] = x[vi]


@T.prim_func(s_tir=True)
def two_writers(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("zero"):
            vi = T.axis.spatial(T.int64(8), i)
            y[vi] = T.float32(0)
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def branches(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            if x[vi] > T.float32(0):
                y[vi] = x[vi]


@T.prim_func(s_tir=True)
def guarded(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            T.where(i < T.int64(7))
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def uninitialised(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(T.int64(4), T.int64(8)):
        with T.sblock("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def bound_to_threads(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in T.thread_binding(T.int64(8), thread="threadIdx.x"):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def loops_too_short(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(T.int64(4)):
        with T.sblock("b"):
            vi = T.axis.spatial(T.int64(8), i)
            y[vi] = x[vi]


def test_shifted_iterators_are_counted_from_zero():
    program = compose_alone(shifted_iterators, f32(8), out=f32(5))
    x = np.arange(8, dtype="float32")
    np.testing.assert_array_equal(run(program, [x])[0], x[2:7])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (scan, "other elements of what it writes"),
        (scatter, "writes at indices that depend on data"),
        (overlapping_write, "does not write each element exactly once"),
        (partial_write, "does not write each element exactly once"),
        (two_writers, "written by several blocks"),
        (branches, "holds a IfThenElse"),
        (guarded, "runs under a condition"),
        (uninitialised, "updates what it does not initialise"),
        (bound_to_threads, "is scheduled"),
        (loops_too_short, "do not enumerate its iterators"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_unstructured_tensor_ir_is_refused(func, reason):
    func = func if isinstance(func, tirx.PrimFunc) else func.func
    for _ in range(2):  # remembered refusals are refusals
        with pytest.raises(Unstructured, match=reason):
            parse(func)


@T.prim_func(s_tir=True)
def any_length(a: T.handle, b: T.handle):
    n, m = T.int32(), T.int32()
    x = T.match_buffer(a, (n, m), "float32")
    y = T.match_buffer(b, (n, m), "float32")
    for i, j in T.grid(n, m):
        with T.sblock("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = x[vi, m - 1 - vj] * T.Cast("float32", n)


@pytest.mark.parametrize("rows", [1, 4])
def test_sizes_of_the_primfunc_become_those_of_the_graph(rows):
    program = compose_alone(any_length, f32(rows, 3), out=f32(rows, 3))
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype("float32")
    np.testing.assert_allclose(run(program, [x])[0], x[:, ::-1] * rows)
    n = tirx.Var("k", "int64")
    program = compose_alone(any_length, f32(n, 3), out=f32(n, 3))
    np.testing.assert_allclose(run(program, [x], {"k": rows})[0], x[:, ::-1] * rows)


def test_one_primfunc_for_several_operators():
    builder = relax.BlockBuilder()
    gvar = builder.add_func(narrow_iterators, "custom")
    x = relax.Var("x", f32(6, 5))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.call_tir(gvar, x, f32(5, 6)))
            back = builder.emit(relax.op.permute_dims(first))
            result = builder.emit_output(relax.call_tir(gvar, back, f32(5, 6)))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    group = Group(graph.operators)
    program = compose(group.members, group.inputs, group.outputs)
    data = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")
    i, j = np.indices((6, 5))
    np.testing.assert_array_equal(run(program, [data])[0], np.where(i < 2, data, i * 10 + j).T)


@pytest.mark.parametrize("is_composed", [False, True])
def test_reduction_over_padding_alone_is_a_map(is_composed):
    """The kernel is narrower than the padding around the image, so that it meets none of it."""
    x, weight = (
        relax.Var("x", f32(2, 3, 5, 1)),
        relax.Var("weight", f32(1, 3, 3, 1)),
    )

    def result(emit, *_):
        if is_composed:
            image = emit(relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 0, 0]))
            image = emit(relax.op.nn.relu(image))
            result = relax.op.nn.conv2d(image, weight, strides=[1, 2], padding=[0, 1, 0, 0])
        else:
            result = relax.op.nn.conv2d(x, weight, strides=[1, 2], padding=[1, 1, 1, 0])
        return result

    mod = relax.transform.LegalizeOps()(main_module([x, weight], result))
    group = Group(Graph(mod, mod["main"], mod["main"].body.blocks[0]).operators)
    program = compose(group.members, group.inputs, group.outputs)
    assert all(stage.is_map for stage in program.stages)
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in buffer.shape] for buffer in program.inputs]
    results = run(program, [rng.standard_normal(s).astype("float32") for s in shapes])
    assert not results[0].any()
