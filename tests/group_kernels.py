"""Groups of Relax operators, the kernels that a template makes of them, and their results."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
import tvm
import tvm_ffi
from emulator.launch import is_for_gpu, launch
from nvcc import cuda_source
from relax_modules import main_module
from tvm import relax, s_tir, tirx

from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.core.tir.loops import find
from tvm_fusion.deploy.count import count
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.gpu.dlight import check_gpu
from tvm_fusion.schedule.gpu.memory import lds
from tvm_fusion.schedule.stage.install import gather

CPU, CUDA = parse("cpu"), parse("cuda:sm_90a")
#: A CPU that is named, as TESTS_CPU does, has no known caches: less is fused there.
needs_caches = pytest.mark.skipif(CPU.device.l2_bytes is None, reason="caches are not known")
SIZE = 5  # of every symbolic dimension


def tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def group(params, body, spec=CPU):
    """All operators of ``body(emit, *params)``, which returns an expression or a list of such."""
    with spec.tvm_target():
        mod = transform.Legalize()(main_module(params, body))
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


def run(func, members, inputs, spec=CPU, kernels=None):
    """Call a kernel, of a GPU in the emulator; every element of its outputs must be written.

    ``kernels`` says how many of a GPU have to run.
    """
    passed = [array(v, inputs) for v in members.inputs] + [SIZE] * len(members.scalars)
    results = [np.full(extents(v.type), 7).astype(v.dtype) for v in members.outputs]
    if is_for_gpu(func):
        gpu = CUDA if spec.kind == "llvm" else spec
        launched = launch(func, [*passed, *results], gpu.tvm_target())
        assert kernels in (None, len(launched))
        return results
    results = [tvm.runtime.tensor(r) for r in results]
    main = built(func, spec)
    main(*(tvm.runtime.tensor(x) if np.ndim(x) else x for x in passed), *results)
    return [r.numpy() for r in results]


def run_all(members, emission, inputs, spec=CUDA):
    """Run all kernels of an emission in the emulator; workspaces and results held NaNs before."""
    held = {("scalar", i): SIZE for i, _ in enumerate(members.scalars)}
    for i, value in enumerate(members.inputs):
        given = np.asarray(array(value, inputs), order="C")
        if i in emission.packing:
            given = gather(emission.packing[i], tvm.runtime.tensor(given)).numpy()
        held["input", i] = given
    sizes = [("workspace", i, w) for i, w in enumerate(emission.workspaces)]
    sizes += [("output", i, v.type) for i, v in enumerate(members.outputs)]
    held |= {(kind, i): np.full(extents(t), np.nan, str(t.dtype)) for kind, i, t in sizes}
    for made in emission.kernels:
        given = [held[s.kind, s.index] for s in (*made.reads, *made.writes)]
        launch(made.func, given, spec.tvm_target())
    return [held["output", i] for i in range(len(members.outputs))]


@lru_cache(maxsize=4)
def built(func, spec):
    """Machine code of a kernel for a CPU, once for all sizes that it is run with."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, spec.tvm_target(), tir_pipeline="tvm_fusion")["main"]


def array(value, inputs):
    """Elements of an input; names of images that are laid out have a suffix."""
    if value.constant is not None:
        return value.constant.value.numpy()
    return inputs[value.name if value.name in inputs else value.name.partition("_")[0]]


def close(actual, expected, tolerance=2e-5):
    for got, want in zip(actual, expected, strict=True):
        assert got.shape == want.shape
        got, want = got.astype("float64"), want.astype("float64")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        is_number = ~np.isnan(want)
        scale = max(1.0, np.abs(want[is_number]).max(initial=0))
        assert np.abs(got - want)[is_number].max(initial=0) <= tolerance * scale


def check(template, params, body, reference, spec, tolerance=2e-5):
    """Claim, emit, run and compare with float64; returns the claim and the kernel."""
    made = emitted(template, params, body, spec)
    agrees(made, params, reference, spec, tolerance)
    return made.claim, made.func


class Emitted(NamedTuple):
    """A group, its claim and its kernel."""

    members: Group
    claim: Claim
    func: tirx.PrimFunc


def emitted(template, params, body, spec):
    """Claim and emit, and check a GPU's limits."""
    members = group(params, body, spec)
    claim, func = kernel(template, members, spec)
    if spec is CUDA:
        assert check_gpu(func, spec.tvm_target()) is None
    return Emitted(members, claim, func)


def agrees(made, params, reference, spec, tolerance=2e-5):
    """Run a kernel with symbolic dimensions of ``SIZE``, and compare with float64."""
    members, claim, func = made
    inputs = arrays(params)
    wide = [x.astype("float64") if x.dtype.kind == "f" else x for x in inputs.values()]
    if not is_for_gpu(func):  # others are counted as they run
        assert launches(func, members, spec) == claim.launches
    close(run(func, members, inputs, spec, claim.launches), reference(*wide), tolerance)


def run_launches(claim, inputs, results):
    """Launch all kernels of a claim on a GPU one after the other, in the emulator.

    ``results`` are shapes and types; they and workspaces hold NaNs before. One result is no list.
    """
    emission = claim.template.emit(claim, CUDA.tvm_target())
    memory = {("input", i): x for i, x in enumerate(inputs)}
    for i, (shape, dtype) in enumerate(results):
        memory["output", i] = np.full(shape, np.nan, dtype)
    for i, workspace in enumerate(emission.workspaces):
        extents = [int(e) for e in workspace.shape.values]
        memory["workspace", i] = np.full(extents, np.nan, str(workspace.dtype))
    for one in emission.kernels:
        slots = [*one.reads, *one.writes]
        launch(one.func, [memory[s.kind, s.index] for s in slots], CUDA.tvm_target())
    found = [memory["output", i] for i in range(len(results))]
    return found[0] if len(found) == 1 else found


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


def shared_bytes(func):
    """Bytes of shared memory that the blocks of a kernel declare."""
    owned = [b for block in find(func.body, s_tir.SBlock) for b in block.alloc_buffers]
    shared = [b.ty for b in owned if b.scope() in ("shared", "shared.dyn", lds.SCOPE)]
    return sum(
        np.prod([int(d) for d in b.shape]) * tvm.DataType(str(b.dtype)).itemsize for b in shared
    )


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
