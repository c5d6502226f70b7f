"""Plan storage of intermediate tensors: best fit, the largest tensor first.

TVM's StaticPlanBlockMemory gives each tensor, in the order of allocation, a storage that is free:
a small tensor takes a large one, and the next large tensor gets a new one. Here the largest tensor
chooses first (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020):

  for tensor, the largest first:
    the smallest storage whose tensors all live at other times, else a new one of its size

Tensors start where their storage does: kernels take no offsets.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

_STORAGE = ir.Op.get("relax.memory.alloc_storage")
_TENSOR = ir.Op.get("relax.memory.alloc_tensor")


@dataclass
class _Tensor:
    """A planned tensor: its variable, bytes, and the first and last binding that it lives in."""

    var: ir.Var
    storage: ir.Var
    bytes: int
    first: int
    last: int


@dataclass
class _Storage:
    """A storage: its bytes, how it is asked for, its tensors."""

    bytes: int
    call: ir.Call
    tensors: list[_Tensor] = field(default_factory=list)

    def is_free(self, tensor: _Tensor) -> bool:
        """Whether none of its tensors lives at a time when another one does."""
        return all(t.last < tensor.first or tensor.last < t.first for t in self.tensors)


@tvm.transform.module_pass(opt_level=0, name="ShareStorage")
class ShareStorage:
    """Assign tensors of known size to storages again, where that takes fewer bytes.

    Runs behind StaticPlanBlockMemory, on CPUs. Nothing changes for tensors of symbolic shapes, for
    those of storages that anything else uses, and inside of branches.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function."""
        target = Target.current(allow_none=True)
        if target is None or target.kind.name != "llvm":
            return mod
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                mod.update_func(gvar, _shared(func))
        return mod


def _shared(func: relax.Function) -> relax.Function:
    """Share a function's storage; the same function where that saves nothing."""
    bindings = [b for block in func.body.blocks for b in block.bindings]
    old = _storages(bindings)
    tensors = _tensors(bindings, func.body.body, old)
    new: list[_Storage] = []
    for tensor in sorted(tensors, key=lambda t: (-t.bytes, t.first)):
        like = old[tensor.storage].call
        free = [s for s in new if _is_alike(s.call, like) and s.is_free(tensor)]
        if free:
            chosen = min(free, key=lambda s: s.bytes)
        else:
            chosen = _Storage(tensor.bytes, like)
            new.append(chosen)
        chosen.tensors.append(tensor)
    before = sum(old[var].bytes for var in {t.storage for t in tensors})
    if sum(s.bytes for s in new) >= before:
        return func
    return _rewritten(func, new)


def _storages(bindings: list[relax.Binding]) -> dict[ir.Var, _Storage]:
    """Find the storages of known size that only tensors of known shape and no offset use."""
    found: dict[ir.Var, _Storage] = {}
    for binding in bindings:
        value = binding.value
        if isinstance(value, ir.Call) and value.op == _STORAGE:
            size = _product(value.args[0])
            if size is not None:
                found[binding.var] = _Storage(size, value)
            continue
        for var in relax.analysis.free_vars(value):
            if var in found and _bytes(value) is None:
                del found[var]
    return found


def _tensors(
    bindings: list[relax.Binding], result: relax.Expr, storages: dict[ir.Var, _Storage]
) -> list[_Tensor]:
    """Find their tensors, and when each lives: what a value is made from, it may be a view of."""
    origins: dict[ir.Var, list[_Tensor]] = {}
    found = []
    for number, binding in enumerate(bindings):
        value = binding.value
        size = _bytes(value)
        if size is not None and value.args[0] in storages:
            tensor = _Tensor(binding.var, value.args[0], size, number, number)
            origins[binding.var] = [tensor]
            found.append(tensor)
            continue
        read = [t for v in relax.analysis.free_vars(value) for t in origins.get(v, ())]
        for tensor in read:
            tensor.last = number
        is_nothing = isinstance(binding.var.ty, relax.TupleType) and not binding.var.ty.fields
        if read and not is_nothing:
            origins[binding.var] = read
    for var in relax.analysis.free_vars(result):
        for tensor in origins.get(var, ()):
            tensor.last = len(bindings)
    return found


def _rewritten(func: relax.Function, storages: list[_Storage]) -> relax.Function:
    """Assign tensors to shared storages, each allocated before its first tensor."""
    builder = relax.BlockBuilder()
    home = {t.var: s for s in storages for t in s.tensors}
    dropped = {t.storage for s in storages for t in s.tensors}
    made: dict[int, ir.Var] = {}

    def bound(binding: relax.Binding) -> list[relax.Binding]:
        if binding.var in dropped:
            return []
        storage = home.get(binding.var)
        if storage is None:
            return [binding]
        asked = []
        if id(storage) not in made:
            call = _call(storage.call, [relax.ShapeExpr([storage.bytes]), *storage.call.args[1:]])
            call = builder.normalize(call)
            var = made[id(storage)] = relax.Var("storage", call.ty)
            asked = [relax.VarBinding(var, call)]
        args = [made[id(storage)], *binding.value.args[1:]]
        value = builder.normalize(_call(binding.value, args))
        return [*asked, relax.VarBinding(binding.var, value)]

    blocks = [
        type(block)([new for b in block.bindings for new in bound(b)]) for block in func.body.blocks
    ]
    body = relax.SeqExpr(blocks, func.body.body)
    result = relax.Function(func.params, body, func.ret_ty, func.is_pure)
    return result.with_attrs(func.attrs) if func.attrs else result


def _call(like: ir.Call, args: list[Any]) -> ir.Call:
    return ir.Call(like.op, args, like.attrs, like.ty_args)


def _is_alike(a: ir.Call, b: ir.Call) -> bool:
    """Whether storages are of one device and scope."""
    return int(a.args[1]) == int(b.args[1]) and str(a.args[2].value) == str(b.args[2].value)


def _bytes(value: Any) -> int | None:
    """Count the bytes of a tensor at the begin of a storage; ``None`` for anything else."""
    if not (isinstance(value, ir.Call) and value.op == _TENSOR):
        return None
    offset, shape, dtype = value.args[1:4]
    elements = _product(shape)
    if elements is None or not isinstance(offset, tirx.IntImm) or int(offset) != 0:
        return None
    kind = tvm.DataType(str(dtype.value))
    return elements * ((kind.bits * kind.lanes + 7) // 8)


def _product(shape: Any) -> int | None:
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(d, tirx.IntImm) for d in shape.values):
        return None
    return math.prod(int(d) for d in shape.values)
