"""Run scheduled kernels as a GPU would: lowered for it, by all threads, on a CPU."""

import importlib
from functools import lru_cache

import numpy as np
import tvm
from tvm import ir, tirx

from tvm_fusion.core.tir.expressions import call_name
from tvm_fusion.core.tir.loops import find
from tvm_fusion.lower.thread_values import NarrowLanes, PrivateReductionResults
from tvm_fusion.schedule.gpu.memory.streaming import STORED

from .expressions import Expressions
from .hopper import USED
from .machine import Machine
from .memory import EmulationError, Memory
from .moves import PRODUCT
from .scalar_types import scalar_type
from .statements import Statements, device_functions, owner
from .tma import TensorMap

AT_ONCE = 16384  # threads
SHARED_AT_ONCE = 2**21  # elements


def launch(func, arguments, target):
    """Run all kernels of a scheduled PrimFunc.

    Parameters
    ----------
    func : PrimFunc
        Over SBlocks and thread bindings.
    arguments : sequence of array or int
        In the order of its parameters; outputs are written in place.
    target : Target
        Of CUDA.

    Returns
    -------
    set of str
        Names of the kernels that ran.
    """
    host, device = _lowered(func, str(target))
    arrays = [x for x in arguments if isinstance(x, np.ndarray)]
    running = _Host(device, arrays, _values(func, arguments))
    with np.errstate(all="ignore"):
        running.run(host["main"].body)
    return running.launched


def is_for_gpu(func):
    """Whether a scheduled PrimFunc binds loops to threads."""
    return any(x.kind == tirx.ForKind.THREAD_BINDING for x in find(func.body, tirx.For))


@lru_cache(maxsize=4)
def _lowered(func, target):
    return lowered(func, tvm.target.Target(target))


def lowered(func, target):
    """Host and device functions, as code generators get them but for the names of intrinsics."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    build = importlib.import_module("tvm.tirx.build")
    with target:
        mod = tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))(mod)
        pipeline, _, _ = tirx.get_tir_pipeline("tvm_fusion")
        host, devices = build.split_host_device_mods(pipeline(mod))
        (device,) = devices.values()
        last = [
            PrivateReductionResults(),
            NarrowLanes(),
            tirx.transform.LowerWarpMemory(),
            tirx.transform.StmtSimplify(),
        ]
        device = tvm.ir.transform.Sequential(last)(device)
    return host, device


def _values(func, arguments):
    """Values of symbolic dimensions by their names."""
    values = {}
    for param, argument in zip(func.params, arguments, strict=True):
        if not isinstance(argument, np.ndarray):
            values[param.name] = int(argument)
            continue
        for extent, size in zip(param.ty.shape, argument.shape, strict=True):
            if isinstance(extent, ir.Var):
                values[extent.name] = size
    return values


class _Host:
    """What the host does of a lowered function: it chooses kernels and launches them."""

    def __init__(self, device, arrays, values):
        self.kernels = {g.name_hint: f for g, f in device.functions.items()}
        self.arguments, self.arrays, self.values = iter(arrays), {}, values
        self.launched = set()

    def run(self, stmt):
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.run(part)
        elif isinstance(stmt, tirx.AttrStmt):
            self.run(stmt.body)
        elif isinstance(stmt, tirx.DeclBuffer):
            above = self.arrays.get(owner(stmt))  # arguments are declared in their order
            self.arrays[stmt.buffer] = next(self.arguments) if above is None else above
        elif isinstance(stmt, tirx.IfThenElse):
            if find(stmt, ir.Call) and not _launches(stmt):
                return
            if self._value(stmt.condition):
                self.run(stmt.then_case)
            elif stmt.else_case is not None:
                self.run(stmt.else_case)
        elif isinstance(stmt, tirx.For):
            for number in range(self._value(stmt.extent)):
                self.values[stmt.loop_var.name] = number
                self.run(stmt.body)
        elif isinstance(stmt, tirx.Evaluate):
            name = call_name(stmt.value) if isinstance(stmt.value, ir.Call) else None
            if name == "call_ffi_kernel":
                self._launch(stmt.value)
            elif name == "tensormap_encode_tiled":
                self._encode(stmt.value)
        elif isinstance(stmt, tirx.Bind):
            if not _launches(stmt) and stmt.var.name not in self.values:
                self._bind(stmt)
        elif not isinstance(stmt, tirx.AssertStmt | tirx.Return):
            raise EmulationError(f"the host does what is not known: {stmt}")

    def _bind(self, stmt):
        inner = [x for x in find(stmt.value, ir.Call)]
        if not inner:
            self.values[stmt.var.name] = self._value(stmt.value)

    def _encode(self, call):
        variable, address, *numbers = call.args
        load, attributes = address.args[0], call.attrs
        array, offset = self.arrays[load.source], self._value(load.indices[0])
        numbers = [self._value(x) for x in numbers]
        self.arrays[variable] = TensorMap.encoded(array, offset, numbers, attributes)

    def _value(self, expr):
        translate = Expressions()
        run = translate.of(expr)
        machine = Machine(0, 1, 1, [None] * len(translate.places))
        for variable, slot in translate.places.items():
            machine.slots[slot] = scalar_type(variable.ty.dtype).type(self.values[variable.name])
        found = np.asarray(run(machine)).reshape(-1)
        return found[0].item()

    def _launch(self, call):
        kernel = self.kernels[call.args[0].value]
        given = []
        for param, argument in zip(kernel.params, call.args[1:], strict=False):
            if "TensorMap" in str(param.ty):
                given.append(self.arrays[argument])
            elif "handle" in str(param.ty):
                given.append(self.arrays[argument.args[0]])
            else:
                given.append(self._value(argument))
        self.launched.add(call.args[0].value)
        run_kernel(kernel, given)


def _launches(stmt):
    return any(call_name(c) == "call_ffi_kernel" for c in find(stmt, ir.Call))


def run_kernel(kernel, given):
    """Run one kernel: arrays and numbers are in the order of its parameters."""
    statements = Statements()
    slots = {}
    written = {s.buffer for s in find(kernel.body, tirx.BufferStore)}
    calls = [c for c in find(kernel.body, ir.Call) if call_name(c) == "func_call"]
    written |= {c.args[1].args[0].source for c in calls if c.args[0].value.startswith(STORED)}
    for declared in reversed(find(kernel.body, tirx.DeclBuffer)):
        if declared.buffer in written:
            written.add(owner(declared))
    body = statements.of(kernel.body)
    translate = statements.expressions
    memories = {}
    for param, value in zip(kernel.params, given, strict=True):
        slot = translate.slot(param)
        if isinstance(value, np.ndarray):
            memories[slot] = param, value.reshape(-1)
        elif isinstance(value, TensorMap):
            slots[slot] = value
        else:
            slots[slot] = scalar_type(param.ty.dtype).type(value)
    maps = [x.view for x in slots.values() if isinstance(x, TensorMap)]
    for param, data in memories.values():
        if param in written and any(np.may_share_memory(data, view) for view in maps):
            raise EmulationError(f"{param.name} is written, but tensor maps are of inputs")
    sizes = _sizes(statements, translate, slots)
    blocks = int(np.prod([sizes.get(f"blockIdx.{a}", 1) for a in "xyz"]))
    threads = int(np.prod([sizes.get(f"threadIdx.{a}", 1) for a in "xyz"]))
    cluster = sizes.get("clusterCtaIdx.x", 1)
    if blocks % cluster:
        raise EmulationError(f"{blocks} blocks are no clusters of {cluster}")
    shared = sum(_shared_size(stmt.buffer) for stmt in find(kernel.body, tirx.AllocBuffer))
    at_once = min(AT_ONCE // threads, SHARED_AT_ONCE // max(1, shared))
    at_once = max(1, at_once // cluster) * cluster
    texts = [text for text in device_functions(kernel.body) if not PRODUCT.search(text)]
    has_roles = any(USED.search(text) for text in texts)
    for first in range(0, blocks, at_once):
        count, empty = min(at_once, blocks - first), [None] * len(translate.places)
        machine = Machine(first, count, threads, empty, cluster, has_roles)
        for slot, value in slots.items():
            machine.slots[slot] = value
        for slot, (param, data) in memories.items():
            name, is_written = param.name.removesuffix("_ptr"), param in written
            machine.slots[slot] = Memory(name, data, machine, watched=is_written)
        statements.bind_threads(machine, sizes)
        body(machine)
        machine.end()


def _shared_size(buffer):
    return int(np.prod([int(e) for e in buffer.shape])) if "shared" in buffer.scope() else 0


def _filled(translate, values):
    return [values.get(slot) for slot in range(len(translate.places))]


def _sizes(statements, translate, slots):
    machine = Machine(0, 1, 1, _filled(translate, slots))
    return {tag: np.asarray(e(machine)).item() for tag, e in statements.extents.items()}
