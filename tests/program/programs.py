"""Groups to compose: graphs with a float64 reference, and what runs their programs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from relax_modules import main_module as module
from tvm import ir, relax, s_tir, tirx
from tvm.relax import op

from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.program.program import Program
from tvm_fusion.program.stage import Axis, Stage
from tvm_fusion.program.stages.compose import compose

Emit = Callable[..., relax.Var]


def tensor(name: str, shape: Sequence, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def group_of(mod: tvm.IRModule) -> tuple[Group, list[int | np.ndarray]]:
    """All operators of a module as one group.

    Also what each group input is: the position of a parameter of the function, or a constant.
    """
    mod = relax.transform.LegalizeOps()(mod)
    func = mod["main"]
    graph = Graph(mod, func, func.body.blocks[0])
    group = Group(graph.operators)
    values = [graph.values[p] for p in func.params]
    return group, [
        values.index(v) if v in values else v.constant.value.numpy() for v in group.inputs
    ]


def program_of(mod: tvm.IRModule) -> Program:
    group, _ = group_of(mod)
    return compose(group.members, group.inputs, group.outputs)


def compiled(programs: dict[str, Program]) -> tvm.runtime.Module:
    """Compile the unscheduled PrimFuncs of programs for the host, in one module."""
    functions = {}
    for name, program in programs.items():
        functions[name] = program.prim_func().with_attr("global_symbol", name)
        s_tir.analysis.verify_well_formed(functions[name])
    return tvm.compile(tvm.IRModule(functions), "llvm")


def run(
    program: Program,
    arrays: Sequence[np.ndarray],
    sizes: dict[str, int] | None = None,
    function: Callable | None = None,
) -> list[np.ndarray]:
    """Run a program by its compiled function, or compile it alone."""
    function = function or compiled({"main": program})["main"]
    given = dict(sizes or {})
    shapes = [[_number(d, given) for d in out.shape] for out in program.outputs]
    # What is not written must not look like a result.
    outs = [
        np.full(s, 77).astype(str(o.dtype)) for s, o in zip(shapes, program.outputs, strict=True)
    ]
    inputs = [tvm.runtime.tensor(a) for a in arrays]
    results = [tvm.runtime.tensor(a) for a in outs]
    function(*inputs, *[given[v.name] for v in program.scalars], *results)
    return [t.numpy() for t in results]


def by_elements(program: Program) -> Program:
    """The same outputs, each computed by its element expression where a map writes it."""
    outside = set(program.outputs)
    stages = [s for s in program.stages if not s.is_map or outside.isdisjoint(s.targets)]
    written = {t for s in stages for t in s.targets}
    for position, out in enumerate(program.outputs):
        if out in written:
            continue
        axes = tuple(Axis(ir.Var(f"e{d}", "int64"), extent) for d, extent in enumerate(out.shape))
        at = tuple(a.var for a in axes)
        value = program.element(position, at)
        stages.append(Stage(f"element_{position}", axes, (), (out,), (at,), (value,), None))
    return replace(program, stages=tuple(stages), row_rank=0)


def _number(extent: ir.Expr, sizes: dict[str, int]) -> int:
    if isinstance(extent, tirx.IntImm):
        return int(extent.value)
    bound = {v: tirx.IntImm("int64", sizes[v.name]) for v in tirx.analysis.undefined_vars(extent)}
    import tvm_ffi

    value = tvm_ffi.structural_map(extent, (ir.Var, lambda v: bound[v]), order="post")
    return int(tvm.sym.Analyzer().simplify(value).value)


def check_rows(program: Program) -> None:
    """What a program promises about its rows, looked at stage by stage."""
    outside = set(program.outputs)
    written: dict = {}
    first = program.stages[0]
    for stage in program.stages:
        assert len(stage.axes) >= program.row_rank
        rows = stage.axes[: program.row_rank]
        for mine, theirs in zip(rows, first.axes, strict=False):
            assert tvm.sym.Analyzer().can_prove_equal(mine.extent, theirs.extent)
        for load in stage.loads:
            assert load.source not in outside, "a stage reads an output"
            assert load.source in program.inputs or load.source in written
            if load.source in written:
                for index, row in zip(load.indices, rows, strict=False):
                    assert index.same_as(row.var)
        for target, indices in zip(stage.targets, stage.indices, strict=True):
            written[target] = stage
            if target not in outside:
                for index, row in zip(indices, rows, strict=False):
                    assert index.same_as(row.var)


# -- the groups ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A graph, its reference over float64 arrays, and the program expected of it."""

    name: str
    params: Callable[[], list[relax.Var]]
    body: Callable
    reference: Callable
    stages: int
    rows: int
    sizes: tuple[dict[str, int], ...] = ({},)

    def module(self) -> tvm.IRModule:
        return module(self.params(), self.body)

    def arrays(self, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        arrays = []
        for param in self.params():
            shape = [_number(d, sizes) for d in param.ty.shape.values]
            dtype = str(param.ty.dtype)
            if dtype.startswith("int"):
                arrays.append(rng.integers(0, 7, shape).astype(dtype))
            elif dtype == "bool":
                arrays.append(rng.random(shape) < 0.5)
            else:
                arrays.append(rng.standard_normal(shape).astype(dtype))
        return arrays


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def const(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def _written_softmax(e: Emit, x: relax.Var) -> relax.Var:
    shifted = e(op.exp(e(op.subtract(x, e(op.max(x, -1, True))))))
    return op.divide(shifted, e(op.sum(shifted, -1, True)))


def _written_norm(e: Emit, x: relax.Var, g: relax.Var, b: relax.Var) -> relax.Var:
    centred = e(op.subtract(x, e(op.mean(x, -1, True))))
    variance = e(op.mean(e(op.multiply(centred, centred)), -1, True))
    scaled = e(op.multiply(centred, e(op.rsqrt(e(op.add(variance, const(1e-5)))))))
    return op.add(e(op.multiply(scaled, g)), b)


def _rms_norm(e: Emit, x: relax.Var, g: relax.Var) -> relax.Var:
    square = e(op.mean(e(op.multiply(x, x)), -1, True))
    return op.multiply(e(op.multiply(x, e(op.rsqrt(e(op.add(square, const(1e-5))))))), g)


def _residual_norm(e: Emit, x: relax.Var, r: relax.Var, g: relax.Var, b: relax.Var) -> list:
    s = e(op.add(x, r))
    return [s, op.nn.layer_norm(s, g, b, axes=[-1])]


def _group_norm(e: Emit, x: relax.Var, g: relax.Var, b: relax.Var) -> relax.Var:
    return op.nn.silu(
        e(op.nn.group_norm(x, g, b, num_groups=3, channel_axis=1, axes=[2, 3], epsilon=1e-5))
    )


def _group_norm_reference(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    grouped = x.reshape(x.shape[0], 3, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    y = normal.reshape(x.shape) * g[:, None, None] + b[:, None, None]
    return y * sigmoid(y)


def _chain_of_views(e: Emit, y: relax.Var) -> relax.Var:
    y = e(op.reshape(y, (2, 9, 3, 8)))
    return e(op.permute_dims(y, [0, 2, 1, 3]))


def _key_path(e: Emit, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Var:
    y = _chain_of_views(e, e(op.add(e(op.matmul(x, w)), b)))
    y = e(op.reshape(y, (6, 9, 8)))
    y = e(op.permute_dims(y, [0, 2, 1]))
    return op.multiply(e(op.reshape(y, (2, 3, 8, 9))), const(0.25))


def _key_reference(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    y = (x @ w + b).reshape(2, 9, 3, 8).transpose(0, 2, 1, 3)
    return y.transpose(0, 1, 3, 2) * 0.25


def _attention(e: Emit, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Var:
    scores = e(op.matmul(q, e(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = e(op.multiply(scores, const(0.25)))
    return op.matmul(e(op.nn.softmax(scores, -1)), v)


def _split_gate(e: Emit, x: relax.Var) -> relax.Var:
    halves = e(op.split(x, 2, axis=1))
    first, second = e(relax.TupleGetItem(halves, 0)), e(relax.TupleGetItem(halves, 1))
    return op.multiply(first, e(op.nn.silu(second)))


def _split_leaving(e: Emit, x: relax.Var) -> list:
    halves = e(op.split(e(op.nn.relu(x)), 2, axis=1))
    first, second = e(relax.TupleGetItem(halves, 0)), e(relax.TupleGetItem(halves, 1))
    return [op.exp(first), op.tanh(second)]


def _diamonds(e: Emit, x: relax.Var) -> relax.Var:
    for _ in range(12):
        x = e(op.minimum(e(op.multiply(x, x)), e(op.multiply(x, const(0.9)))))
    return op.nn.relu(x)


def _diamonds_reference(x: np.ndarray) -> np.ndarray:
    for _ in range(12):
        x = np.minimum(x * x, x * 0.9)
    return np.maximum(x, 0)


def _symbols() -> tuple[tirx.Var, tirx.Var]:
    return tirx.Var("n", "int64"), tirx.Var("s", "int64")


def _dynamic(*shapes: Callable) -> Callable[[], list[relax.Var]]:
    def params() -> list[relax.Var]:
        n, s = _symbols()
        return [tensor(f"p{k}", shape(n, s)) for k, shape in enumerate(shapes)]

    return params


def _static(*shapes: tuple, dtypes: Sequence[str] = ()) -> Callable[[], list[relax.Var]]:
    kinds = [*dtypes, *["float32"] * (len(shapes) - len(dtypes))]
    return lambda: [
        tensor(f"p{k}", s, d) for k, (s, d) in enumerate(zip(shapes, kinds, strict=True))
    ]


def _flat_rows(e: Emit, x: relax.Var) -> relax.Var:
    n, s = x.ty.shape.values[:2]
    flat = e(op.nn.softmax(e(op.reshape(x, (n * s, 24))), -1))
    return op.reshape(flat, (n, s, 24))


def _heads(e: Emit, x: relax.Var) -> relax.Var:
    n, s = x.ty.shape.values[:2]
    y = e(op.reshape(e(op.nn.relu(x)), (n, s, 4, 6)))
    return op.exp(e(op.permute_dims(y, [0, 2, 1, 3])))


SIZES = ({"n": 1, "s": 1}, {"n": 3, "s": 5}, {"n": 7, "s": 2})

CASES = [
    # maps
    Case(
        "chain",
        _static((13, 7), (7,)),
        lambda e, x, y: op.nn.relu(e(op.add(e(op.exp(x)), y))),
        lambda x, y: np.maximum(np.exp(x) + y, 0),
        1,
        0,
    ),
    Case(
        "siblings",
        _static((13, 7)),
        lambda e, x: [op.exp(x), op.tanh(x)],
        lambda x: [np.exp(x), np.tanh(x)],
        2,
        0,
    ),
    Case(
        "expensive_map_of_two_outputs",
        _static((13, 7)),
        lambda e, x: (lambda y: [op.add(y, const(1)), op.permute_dims(e(op.negative(y)))])(
            e(op.exp(x))
        ),
        lambda x: [np.exp(x) + 1, -np.exp(x).T],
        3,
        2,
    ),
    Case(
        "cheap_map_also_leaves",
        _static((13, 7)),
        lambda e, x: (lambda y: [y, op.exp(y)])(e(op.nn.relu(x))),
        lambda x: [np.maximum(x, 0), np.exp(np.maximum(x, 0))],
        2,
        0,
    ),
    Case(
        "same_tensor_twice",
        _static((5, 9)),
        lambda e, x: op.concat([e(op.multiply(x, x)), x], axis=0),
        lambda x: np.concatenate([x * x, x]),
        1,
        0,
    ),
    Case(
        "reshape_between_maps",
        _static((14, 9)),
        lambda e, x: op.exp(e(op.reshape(e(op.nn.relu(x)), (21, 6)))),
        lambda x: np.exp(np.maximum(x, 0).reshape(21, 6)),
        1,
        0,
    ),
    Case(
        "views_undone",
        _static((2, 9, 24)),
        lambda e, x: op.reshape(
            e(op.permute_dims(_chain_of_views(e, x), [0, 2, 1, 3])), (2, 9, 24)
        ),
        lambda x: x,
        1,
        0,
    ),
    Case(
        "split_gate",
        _static((5, 14)),
        _split_gate,
        lambda x: x[:, :7] * x[:, 7:] * sigmoid(x[:, 7:]),
        1,
        0,
    ),
    Case(
        "split_leaving",
        _static((5, 14)),
        _split_leaving,
        lambda x: [np.exp(np.maximum(x[:, :7], 0)), np.tanh(np.maximum(x[:, 7:], 0))],
        2,
        0,
    ),
    Case(
        "concat",
        _static((5, 3), (5, 4), (5, 6)),
        lambda e, x, y, z: op.exp(e(op.concat([e(op.nn.relu(x)), e(op.tanh(y)), z], axis=1))),
        lambda x, y, z: np.exp(np.concatenate([np.maximum(x, 0), np.tanh(y), z], 1)),
        1,
        0,
    ),
    Case(
        "take",
        _static((11, 6), (5,), dtypes=("float32", "int32")),
        lambda e, x, i: op.exp(e(op.take(e(op.nn.relu(x)), i, axis=0, mode="clip"))),
        lambda x, i: np.exp(np.maximum(x, 0)[i]),
        1,
        0,
    ),
    Case(
        "pad",
        _static((5, 3)),
        lambda e, x: op.exp(e(op.nn.pad(e(op.tanh(x)), [1, 2, 0, 3], "constant", 0.5))),
        lambda x: np.exp(np.pad(np.tanh(x), [(1, 2), (0, 3)], constant_values=0.5)),
        1,
        0,
    ),
    Case(
        "strided_slice",
        _static((23, 4)),
        lambda e, x: op.exp(e(op.strided_slice(e(op.nn.relu(x)), [0], [3], [20], [4]))),
        lambda x: np.exp(np.maximum(x, 0)[3:20:4]),
        1,
        0,
    ),
    Case(
        "where",
        _static((5, 6), (5, 6), (6,), dtypes=("bool",)),
        lambda e, m, x, y: op.nn.relu(e(op.where(m, e(op.exp(x)), y))),
        lambda m, x, y: np.maximum(np.where(m, np.exp(x), y), 0),
        1,
        0,
    ),
    Case(
        "cast_and_broadcast",
        _static((5, 1, 3), dtypes=("int32",)),
        lambda e, x: op.broadcast_to(e(op.astype(x, "float32")), (5, 4, 3)),
        lambda x: np.broadcast_to(x, (5, 4, 3)),
        1,
        0,
    ),
    Case("diamonds", _static((3, 5)), _diamonds, _diamonds_reference, 4, 2),
    # reductions over rows
    Case("softmax", _static((13, 7)), _written_softmax, softmax, 4, 1),
    Case(
        "softmax_operator_and_scale",
        _static((13, 7)),
        lambda e, x: op.nn.softmax(e(op.multiply(x, const(0.5))), -1),
        lambda x: softmax(0.5 * x),
        4,
        1,
    ),
    Case(
        "log_softmax",
        _static((13, 7)),
        lambda e, x: op.nn.log_softmax(x, -1),
        lambda x: np.log(softmax(x)),
        3,
        1,
    ),
    Case(
        "masked_softmax",
        _static((2, 3, 5), (2, 1, 5), dtypes=("float32", "bool")),
        lambda e, x, m: op.nn.softmax(e(op.where(m, x, const(-1e9))), -1),
        lambda x, m: softmax(np.where(m, x, -1e9)),
        4,
        2,
    ),
    Case("layer_norm", _static((13, 7), (7,), (7,)), _written_norm, layer_norm, 3, 1),
    Case(
        "rms_norm",
        _static((13, 7), (7,)),
        _rms_norm,
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        2,
        1,
    ),
    Case(
        "residual_and_norm",
        _static((5, 7), (5, 7), (7,), (7,)),
        _residual_norm,
        lambda x, r, g, b: [x + r, layer_norm(x + r, g, b)],
        5,
        1,
    ),
    Case(
        "group_norm",
        _static((2, 6, 3, 5), (6,), (6,)),
        _group_norm,
        _group_norm_reference,
        2,
        2,
    ),
    Case(
        "first_axis",
        _static((13, 7)),
        lambda e, x: op.divide(x, e(op.sum(x, 0))),
        lambda x: x / x.sum(0),
        2,
        1,
    ),
    Case(
        "middle_axis",
        _static((3, 5, 4)),
        lambda e, x: op.subtract(x, e(op.max(x, 1, True))),
        lambda x: x - x.max(1, keepdims=True),
        2,
        2,
    ),
    Case(
        "two_reductions",
        _static((13, 7)),
        lambda e, x: [op.sum(x, -1), op.max(x, -1)],
        lambda x: [x.sum(-1), x.max(-1)],
        2,
        1,
    ),
    Case(
        "two_reductions_by_transposed_rows",
        _static((7, 7)),
        lambda e, x: [op.sum(e(op.permute_dims(x)), 0), op.max(x, -1)],
        lambda x: [x.sum(-1), x.max(-1)],
        2,
        1,
    ),
    Case(
        "reductions_along_different_axes",
        _static((7, 7)),
        lambda e, x: op.add(e(op.sum(x, 0)), e(op.max(x, 1))),
        lambda x: x.sum(0) + x.max(1),
        3,
        1,
    ),
    Case(
        "reduction_of_everything",
        _static((5, 7)),
        lambda e, x: op.divide(x, e(op.sum(e(op.exp(x))))),
        lambda x: x / np.exp(x).sum(),
        2,
        0,
    ),
    Case(
        "reductions_one_after_the_other",
        _static((3, 5, 4)),
        lambda e, x: op.max(e(op.sum(x, 2)), 1),
        lambda x: x.sum(2).max(1),
        2,
        1,
    ),
    Case(
        "sum_and_reshape",
        _static((6, 4, 5)),
        lambda e, x: op.reshape(e(op.sum(x, 2)), (3, 8)),
        lambda x: x.sum(2).reshape(3, 8),
        1,
        2,
    ),
    Case(
        "argmax",
        _static((13, 7)),
        lambda e, x: op.argmax(e(op.tanh(x)), 1),
        lambda x: x.argmax(1),
        1,
        1,
    ),
    Case(
        "argmax_of_transposed_rows",
        _static((3, 4, 7)),
        lambda e, x: [op.argmax(x, 2), op.sum(e(op.permute_dims(x, [1, 0, 2])), [1, 2])],
        lambda x: [x.argmax(2), x.sum((0, 2))],
        2,
        1,
    ),
    Case(
        "softmax_between_reshapes",
        _static((12, 7)),
        lambda e, x: op.reshape(e(op.nn.softmax(e(op.reshape(x, (3, 4, 7))), -1)), (12, 7)),
        softmax,
        4,
        2,
    ),
    Case(
        "softmax_transposed_and_merged",
        _static((3, 4, 5)),
        lambda e, x: op.reshape(e(op.permute_dims(e(op.nn.softmax(x, -1)), [0, 2, 1])), (3, 20)),
        lambda x: softmax(x).transpose(0, 2, 1).reshape(3, 20),
        4,
        2,
    ),
    Case(
        "softmax_across_a_reshape",
        _static((14, 9)),
        lambda e, x: op.reshape(e(op.nn.softmax(x, -1)), (21, 6)),
        lambda x: softmax(x).reshape(21, 6),
        4,
        1,
    ),
    Case(
        "transposed_consumer",
        _static((6, 6)),
        lambda e, x: op.multiply(e(op.permute_dims(x)), e(op.expand_dims(e(op.sum(x, -1)), 0))),
        lambda x: x.T * x.sum(-1)[None],
        2,
        1,
    ),
    Case(
        "other_rows_of_a_sum",
        _static((6, 4)),
        lambda e, x: op.multiply(x, e(op.expand_dims(e(op.flip(e(op.sum(x, -1)), 0)), 1))),
        lambda x: x * x.sum(-1)[::-1][:, None],
        2,
        0,
    ),
    Case(
        "unrelated_rows",
        _static((13, 7), (11,)),
        lambda e, x, z: [op.nn.softmax(x, -1), op.exp(z)],
        lambda x, z: [softmax(x), np.exp(z)],
        5,
        0,
    ),
    # contractions
    Case(
        "matmul_bias_gelu",
        _static((5, 7), (7, 6), (6,)),
        lambda e, x, w, b: op.nn.silu(e(op.add(e(op.matmul(x, w)), b))),
        lambda x, w, b: (x @ w + b) * sigmoid(x @ w + b),
        2,
        2,
    ),
    Case(
        "matmul_views_residual",
        _static((18, 7), (7, 24), (24,), (2, 3, 9, 8)),
        lambda e, x, w, b, r: op.add(_chain_of_views(e, e(op.add(e(op.matmul(x, w)), b))), r),
        lambda x, w, b, r: (x @ w + b).reshape(2, 9, 3, 8).transpose(0, 2, 1, 3) + r,
        2,
        2,
    ),
    Case("key_path", _static((2, 9, 7), (7, 24), (24,)), _key_path, _key_reference, 2, 3),
    Case(
        "gated",
        _static((5, 7), (7, 6), (7, 6)),
        lambda e, x, w, u: op.multiply(e(op.matmul(x, w)), e(op.nn.silu(e(op.matmul(x, u))))),
        lambda x, w, u: (x @ w) * (x @ u) * sigmoid(x @ u),
        3,
        2,
    ),
    Case(
        "map_before_matmul",
        _static((5, 7), (7, 6)),
        lambda e, x, w: op.matmul(e(op.tanh(x)), w),
        lambda x, w: np.tanh(x) @ w,
        1,
        2,
    ),
    Case(
        "attention",
        _static((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
        _attention,
        lambda q, k, v: softmax(q @ k.transpose(0, 1, 3, 2) * 0.25) @ v,
        5,
        3,
    ),
    Case(
        "conv_bias_relu",
        _static((2, 3, 7, 6), (4, 3, 3, 3), (1, 4, 1, 1)),
        lambda e, x, w, b: op.nn.relu(e(op.add(e(op.nn.conv2d(x, w, padding=1)), b))),
        lambda x, w, b: np.maximum(conv(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), w) + b, 0),
        2,
        4,
    ),
    Case(
        "pooling_of_a_conv",
        _static((2, 3, 7, 6), (4, 3, 2, 2)),
        lambda e, x, w: op.nn.adaptive_avg_pool2d(e(op.nn.conv2d(x, w)), 1),
        lambda x, w: conv(x, w).mean((2, 3), keepdims=True),
        3,
        2,
    ),
    # symbolic sizes
    Case(
        "symbolic_residual_and_norm",
        _dynamic(
            lambda n, s: (n, s, 6), lambda n, s: (n, s, 6), lambda n, s: (6,), lambda n, s: (6,)
        ),
        _residual_norm,
        lambda x, r, g, b: [x + r, layer_norm(x + r, g, b)],
        5,
        2,
        SIZES,
    ),
    Case(
        "symbolic_heads",
        _dynamic(lambda n, s: (n, s, 24)),
        _heads,
        lambda x: np.exp(np.maximum(x, 0).reshape(*x.shape[:2], 4, 6).transpose(0, 2, 1, 3)),
        1,
        0,
        SIZES,
    ),
    Case(
        "symbolic_flat_rows",
        _dynamic(lambda n, s: (n, s, 24)),
        _flat_rows,
        softmax,
        4,
        1,
        SIZES,
    ),
    Case(
        "symbolic_matmul",
        _dynamic(lambda n, s: (n, s, 7), lambda n, s: (7, 24)),
        lambda e, x, w: _heads(e, e(op.matmul(x, w))),
        lambda x, w: np.exp(np.maximum(x @ w, 0).reshape(*x.shape[:2], 4, 6).transpose(0, 2, 1, 3)),
        2,
        3,
        SIZES,
    ),
    Case(
        "symbolic_softmax_width",
        _dynamic(lambda n, s: (n, s)),
        _written_softmax,
        softmax,
        4,
        1,
        SIZES,
    ),
    Case(
        "compound_extent",
        _dynamic(lambda n, s: (n * 2, 4)),
        lambda e, x: op.exp(e(op.nn.relu(x))),
        lambda x: np.exp(np.maximum(x, 0)),
        1,
        0,
        SIZES,
    ),
]


def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Convolution without padding, NCHW."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwkl,fckl->nfhw", windows, w)
