"""Groups of Relax operators, the kernels that a template makes of them, and their results."""

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.core.expressions import call_name, substitute, variables
from tvm_fusion.core.template import Claim
from tvm_fusion.deploy.count import count
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.gpu.cp_async import BYTES, COPY
from tvm_fusion.schedule.gpu.dlight import check_gpu
from tvm_fusion.schedule.gpu.movmatrix import MOVMATRIX
from tvm_fusion.schedule.gpu.register_buffers import STREAMED

CPU, CUDA = parse("cpu"), parse("cuda:sm_90a")
SIZE = 5  # of every symbolic dimension


def tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def group(params, body, spec=CPU):
    """All operators of ``body(emit, *params)``, which returns an expression or a list of such."""
    builder = relax.BlockBuilder()

    def emit(expr):
        return builder.emit(expr)

    with builder.function("main", params):
        with builder.dataflow():
            results = body(emit, *params)
            results = results if isinstance(results, list) else [results]
            outputs = [builder.emit_output(builder.normalize(r)) for r in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    with spec.tvm_target():
        mod = transform.Legalize()(builder.get())
    func = mod["main"]
    return Group(Graph(mod, func, func.body.blocks[0]).operators)


def kernel(template, members, spec):
    """The only kernel that a template emits for a group that it must claim."""
    claim = template.claim(members, spec.device)
    assert isinstance(claim, Claim), claim
    (made,) = template.emit(claim, spec.tvm_target()).kernels
    assert [s.kind for s in made.reads] == ["input"] * len(members.inputs) + ["scalar"] * len(
        members.scalars
    )
    assert len(made.writes) == len(members.outputs)
    return claim, made.func


def serial(func):
    """Thread bindings as loops: the meaning of a schedule without barriers, on a CPU.

    What a thread asks of another one of its warp, it reads where that one keeps it; so do the
    threads of a warp whose fragments tensor cores multiply. Copies are there at once.
    """

    def unbind(loop):
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    def read(call):
        if call_name(call) != "tvm_warp_shuffle":
            return call
        (thread,) = variables(call.args[2])
        return substitute(call.args[1], {thread: tirx.Cast("int64", call.args[2])})

    def written_out(call):
        is_call = isinstance(call.value, tvm.ir.Call)
        if not is_call or call_name(call.value) != "func_call":
            return call
        name, *args = call.value.args
        places = [x.args[0] for x in args if call_name(x) == "address_of"]
        if name.value in (COPY, STREAMED):
            return _copied(*places)
        if not places:
            return tirx.Evaluate(0)
        if name.value == MOVMATRIX:
            return _turned(*places)
        return _sums_of_columns(*places)

    body = tvm_ffi.structural_map(func.body, (tvm.ir.Call, read), order="post")
    body = tvm_ffi.structural_map(body, (tirx.Evaluate, written_out), order="post")
    return func.with_body(tvm_ffi.structural_map(body, (tirx.For, unbind), order="post"))


def _copied(to, element):
    """All elements of a vector."""

    def beside(load, lane):
        return [*load.indices[:-1], load.indices[-1] + lane]

    def one(lane):
        value = tirx.BufferLoad(element.source, beside(element, lane))
        return tirx.BufferStore(to.source, value, beside(to, lane))

    return tirx.SeqStmt(
        [one(lane) for lane in range(BYTES // tvm.DataType(str(to.ty.dtype)).itemsize)]
    )


def _lane(load):
    """Where a thread's registers are, its number in its warp, and its warp."""
    *thread, place = load.indices
    if len(thread) == 2:
        return place, thread[1], lambda lane: [thread[0], lane]
    warp = tirx.floordiv(thread[0], 32) * 32
    return place, tirx.floormod(thread[0], 32), lambda lane: [warp + lane]


def _turned(to, pair):
    """Both elements of a thread: eight rows of eight, of which columns become rows."""
    place, lane, of = _lane(pair)
    line, sharer = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)
    stores = []
    for one in range(2):
        other = (2 * sharer + one) * 4 + tirx.floordiv(line, 2)
        value = tirx.BufferLoad(pair.source, [*of(other), place + tirx.floormod(line, 2)])
        where = [*to.indices[:-1], to.indices[-1] + one]
        stores.append(tirx.BufferStore(to.source, value, where))
    return tirx.SeqStmt(stores)


def _sums_of_columns(sums, low, high, rows):
    """The four sums of a thread: two columns of sixteen times two rows of eight, sixteen terms."""
    place, lane, of = _lane(sums)
    line, sharer = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)

    def factor(load, line, other, term):
        where = [*of(4 * line + other), load.indices[-1] + term]
        return tirx.Cast("float32", tirx.BufferLoad(load.source, where))

    stores = []
    for number, (columns, row) in enumerate((c, r) for c in (low, high) for r in range(2)):
        where = [*of(lane), place + number]
        total = tirx.BufferLoad(sums.source, where)
        for other in range(4):
            for term in range(4):
                of_row = factor(rows, 2 * sharer + row, other, term)
                total = total + factor(columns, line, other, term) * of_row
        stores.append(tirx.BufferStore(sums.source, total, where))
    return tirx.SeqStmt(stores)


def extents(type_):
    values = {}

    def value(extent):
        numeric = tvm_ffi.structural_map(
            extent,
            (tvm.ir.Var, lambda v: tirx.IntImm("int64", values.setdefault(v, SIZE))),
            order="post",
        )
        return int(tvm.sym.Analyzer().simplify(numeric))

    return tuple(value(d) for d in type_.shape.values)


def arrays(params, seed=0):
    """Seeded inputs by name; integers are valid indices of anything with 3 elements."""
    rng = np.random.default_rng(seed)

    def make(param):
        shape, dtype = extents(param.ty), str(param.ty.dtype)
        if dtype.startswith("int"):
            return rng.integers(0, 3, shape).astype(dtype)
        return np.asarray(rng.standard_normal(shape)).astype(dtype)

    return {p.name: make(p) for p in params}


def run(func, members, inputs, spec=CPU):
    """Call a kernel on the CPU; every element of its outputs must be written."""
    func = func.with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), spec.tvm_target(), tir_pipeline="tvm_fusion")
    passed = [tvm.runtime.tensor(_array(v, inputs)) for v in members.inputs]
    passed += [SIZE] * len(members.scalars)
    results = [np.empty(extents(v.type), v.dtype) for v in members.outputs]
    for result in results:
        result.fill(7)
    results = [tvm.runtime.tensor(r) for r in results]
    built["main"](*passed, *results)
    return [r.numpy() for r in results]


def _array(value, inputs):
    return inputs[value.name] if value.constant is None else value.constant.value.numpy()


def close(actual, expected, tolerance=2e-5):
    for got, want in zip(actual, expected, strict=True):
        assert got.shape == want.shape
        scale = max(1.0, np.abs(want.astype("float64")).max())
        error = np.abs(got.astype("float64") - want.astype("float64")).max()
        assert error <= tolerance * scale


def check(template, params, body, reference, spec, tolerance=2e-5):
    """Claim, emit, run and compare with float64; returns the claim and the kernel."""
    members = group(params, body, spec)
    claim, func = kernel(template, members, spec)
    inputs = arrays(params)
    wide = [x.astype("float64") if x.dtype.kind == "f" else x for x in inputs.values()]
    expected = reference(*wide)
    if spec is CUDA:
        assert check_gpu(func, spec.tvm_target()) is None
    assert launches(func, members, spec) == claim.launches
    runnable, runs_on = (serial(func), CPU) if spec is CUDA else (func, spec)
    close(run(runnable, members, inputs, runs_on), expected, tolerance)
    return claim, func


def module(func, members):
    """A Relax function that calls the kernel."""
    builder = relax.BlockBuilder()
    params = [relax.Var(v.name, v.type) for v in members.inputs]
    out = [v.type for v in members.outputs]
    with builder.function("main", [*params, *members.scalars]):
        with builder.dataflow():
            gvar = builder.add_func(func, "kernel")
            call = relax.Call(
                tvm.ir.Op.get("relax.call_tir"),
                [gvar, relax.Tuple([*params, *members.scalars])],
                None,
                [out[0] if len(out) == 1 else relax.TupleType(out)],
            )
            y = builder.emit_output(call)
        builder.emit_func_output(y)
    return builder.get()


def launches(func, members, spec):
    names = {v.name for value in members.inputs for v in tvm_variables(value)}
    names |= {v.name for v in members.scalars}
    counted = count(
        module(func, members),
        spec.tvm_target(),
        dims=dict.fromkeys(names, SIZE),
        tir_pipeline="tvm_fusion",
    )
    return counted.launches if isinstance(counted.launches, int) else len(counted.launches)


def tvm_variables(value):
    return [v for d in value.shape for v in tirx.analysis.undefined_vars(d)]


def cuda_source(func):
    """Text of a module with one kernel as CUDA; no compiler is called."""
    name = "tvm_callback_cuda_compile"
    callback = tvm.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *_: b"none", override=True)
    target = CUDA.tvm_target()
    try:
        with target:
            mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
            built = tvm.compile(mod, target, tir_pipeline="tvm_fusion")
    finally:
        if callback is not None:
            tvm_ffi.register_global_func(name, callback, override=True)
    return built.mod.imports[0].inspect_source()


def cuda_kernel(func):
    """The kernel itself of that text."""
    text = cuda_source(func)
    return text[text.rindex("__global__") :]


def compiles_for_cuda(template, cases):
    """Whether the kernels of all cases become machine code of an H100, in one module."""
    functions = {}
    for number, (params, body, *_) in enumerate(cases.values()):
        func = kernel(template, group(params, body, CUDA), CUDA)[1]
        functions[f"kernel{number}"] = func.with_attr("global_symbol", f"kernel{number}")
    target = CUDA.tvm_target()
    with toolchain(CUDA), target:
        built = tvm.compile(tvm.IRModule(functions), target, tir_pipeline="tvm_fusion")
    return any(module.kind == "cuda" for module in built.mod.imports)
