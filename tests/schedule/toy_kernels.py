"""Templates that emit what the package's own do not: workspaces, several kernels, packing."""

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim, Emission, Kernel, Refusal, Slot, Template
from tvm_fusion.core.contract.templates import registered
from tvm_fusion.core.tir.loops import block, index, loop
from tvm_fusion.device import parse

TARGET = parse("cpu").tvm_target()
MATRIX = (6, 8)


def buffer(name, shape=MATRIX, dtype="float32"):
    return tirx.decl_buffer([index(d) for d in shape], dtype, name)


def func(params, body):
    """Wrap a statement into a PrimFunc over blocks."""
    whole = tirx.PrimFunc(params, block("root", body))
    return whole.with_attrs({"s_tir": True, "tirx.noalias": True})


def each(target, value):
    """Write ``target[place] = value(place)`` over all places."""

    def level(done):
        if len(done) == len(target.ty.shape):
            return tirx.BufferStore(target, value(*done), done)
        extent = target.ty.shape[len(done)]
        return loop(f"i{len(done)}", extent, lambda i: level([*done, i]))

    return level([])


class Toy(Template):
    """Claims the group whose members have certain titles, for nothing, and emits what it is told.

    Parameters
    ----------
    titles : str
        Members' titles, with plus signs between.
    emission : callable
        From the group to its Emission.
    """

    name = "toy"

    def __init__(self, titles, emission):
        self.titles, self.emission = titles.split("+"), emission
        self.emitted = 0

    def claim(self, group, device):
        if [op.title for op in group.members] != self.titles:
            return Refusal("not_mine", "These are not the operators.")
        return Claim(self, group, launches=1, bytes=1, flops=1)

    def emit(self, claim, target):
        self.emitted += 1
        return self.emission(claim.group)

    def propose(self, graph, device):
        yield tuple(op for op in graph.operators if op.title in self.titles)


def kernel(function, reads, writes):
    """Bind a PrimFunc's parameters: ``i0`` is the first input, ``s``, ``o``, ``w`` likewise."""
    kinds = {"i": "input", "s": "scalar", "o": "output", "w": "workspace"}

    def slots(text):
        return tuple(Slot(kinds[name[0]], int(name[1:])) for name in text.split())

    return Kernel(function, slots(reads), slots(writes))


def compiled(mod, toy, *before):
    """Plan, emit and install with a toy; returns the module before and after emission."""
    with TARGET, registered(toy):
        planned = tvm.transform.Sequential(
            [transform.Legalize(), *before, transform.FuseOperators()]
        )(mod)
        return planned, transform.ScheduleKernels()(planned)


def run(mod, *inputs):
    """Build and run main; all outputs as arrays."""
    relax.analysis.well_formed(mod)
    built = tvm.compile(mod, TARGET, tir_pipeline="tvm_fusion")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    tensors = [result] if hasattr(result, "numpy") else list(result)
    return [tensor.numpy() for tensor in tensors]


def called(mod, name="main"):
    """Names of the PrimFuncs that a function calls, in order."""
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            found.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(mod[name], visit)
    return found


def random(*shape):
    return np.random.default_rng(7).standard_normal(shape, np.float32)


ROOT = relax.TensorType(MATRIX, "float32")


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor((6, 8), "float32"), y: R.Tensor((6, 8), "float32")):
        with R.dataflow():
            a = R.tanh(x)
            b = R.add(a, y)
            R.output(b)
        return b


@I.ir_module
class Doubled:
    """The extent ``n`` stands bare nowhere, so that it must be passed."""

    @R.function
    def main(x: R.Tensor(("n * 2", 4), "float32"), z: R.Tensor(("n",), "float32")):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            a = R.tanh(x)
            b = R.nn.relu(a)
            c = R.exp(z)
            R.output(b, c)
        return b, c


def unary(name, value):
    source, target = buffer("source"), buffer(name)
    return func([source, target], each(target, lambda *at: value(tirx.BufferLoad(source, at))))


def binary(name, value):
    a, b, target = buffer("a"), buffer("b"), buffer(name)
    loads = lambda at: (tirx.BufferLoad(a, at), tirx.BufferLoad(b, at))  # noqa: E731
    return func([a, b, target], each(target, lambda *at: value(*loads(at))))


def tanh_then_add():
    return unary("t", tirx.tanh), binary("sum", lambda a, b: a + b)


def through_workspace(group):
    first, second = tanh_then_add()
    kernels = (kernel(first, "i0", "w0"), kernel(second, "w0 i1", "o0"))
    return Emission(kernels, workspaces=(ROOT,))
