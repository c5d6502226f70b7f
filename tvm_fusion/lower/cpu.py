"""CPU kernels: small buffers on the stack, alignment of an element, trips of parallel loops."""

import math

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map

# Keep small local buffers of CPU kernels on the stack, from where LLVM promotes them to registers.
#
# TVM 0.27 allocates what exceeds a kilobyte from a pool, scope ``local`` or not. A tile of sums
# then lies in memory that others might see: LLVM keeps it there between loops, and spills.


MOST_BYTES = 16 * 1024  # of one buffer on a thread's stack

CPU = 1  # DLPack's kDLCPU
_KEEP = "disable_lower_builtin"


@tirx.transform.prim_func_pass(opt_level=0, name="RegistersOnStack")
class RegistersOnStack:
    """Keep small buffers of scope ``local`` from becoming calls of the runtime's allocator."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Mark the allocations of one function that runs on a CPU.

        What a launcher of device kernels allocates lies on the device: TVM's scans do so, in scope
        ``local`` around the launches.
        """
        if not is_for_cpu(func):
            return func

        def mark(alloc: tirx.AllocBuffer) -> tirx.AllocBuffer:
            if alloc.buffer.scope() != "local" or not _is_small(alloc.buffer):
                return alloc
            return tirx.AllocBuffer(
                alloc.buffer, {**dict(alloc.annotations), _KEEP: tirx.IntImm("bool", 1)}
            )

        body = tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, mark), order="post")
        return func.with_body(body)


def is_for_cpu(func: tirx.PrimFunc) -> bool:
    """Tell whether a function computes on the CPU and launches nothing on another device."""
    attrs: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, attrs.append))
    kinds = [a.value for a in attrs if a.attr_key == "device_type"]
    return all(isinstance(k, tirx.IntImm) and int(k) == CPU for k in kinds)


def _is_small(buffer: ir.Var) -> bool:
    extents = [int(d) for d in buffer.ty.shape if isinstance(d, tirx.IntImm)]
    if len(extents) < len(buffer.ty.shape):
        return False
    return math.prod(extents) * tvm.DataType(str(buffer.ty.dtype)).bits // 8 <= MOST_BYTES


# Let CPU kernels take unaligned tensors: numpy arrays, and views into larger ones.
#
# TVM 0.27 tells LLVM that the memory of every parameter is aligned to 64 bytes and checks it
# nowhere on a CPU: vector loads are emitted as aligned ones, and a numpy array, which numpy aligns
# to 16 bytes, crashes. Unaligned vector loads of memory that happens to be aligned cost nothing on
# x86 and ARM, so only the alignment of an element is promised. What a kernel allocates itself stays
# aligned.


_ALIGNMENT = "storage_alignment"  # TVM's attribute, which MakePackedAPI writes around a body


@tirx.transform.prim_func_pass(opt_level=0, name="NaturalAlignment")
class NaturalAlignment:
    """Promise LLVM the alignment of an element for the memory of parameters.

    Runs behind MakePackedAPI. Launchers of device kernels are left alone: device code generators
    have rules of their own.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite the promises of one function that runs on a CPU."""
        if not is_for_cpu(func):
            return func

        def promise(attr: tirx.AttrStmt) -> tirx.AttrStmt:
            if attr.attr_key != _ALIGNMENT:
                return attr
            size = element_alignment(str(attr.node.ty.dtype))
            return tirx.AttrStmt(attr.node, _ALIGNMENT, tirx.IntImm("int32", size), attr.body)

        return func.with_body(
            tvm_ffi.structural_map(func.body, (tirx.AttrStmt, promise), order="post")
        )


def element_alignment(dtype: str) -> int:
    """Return the alignment of an element in bytes; types of less than a byte have one of a byte."""
    return max(1, tvm.DataType(dtype).bits // 8)


# Say in the closure of each parallel loop how many trips it has.
#
# TVM hands a loop's body to its launcher as a function of a part's number and the number of parts,
# and a closure of the variables that the loop uses, in the order of their use. A launcher that
# chooses how many parts there are (``deploy/toolchain/thread_team.c``) has to know the trips:
#
#     parallel i in range(1000): a[i] = ...
#     trips: int64 = 1000;  parallel i in range(trips): a[i] = ...   the closure begins with trips
#
# A launcher that reads another number there divides the loop less evenly, and nothing else.


@tirx.transform.prim_func_pass(opt_level=0, name="ParallelTrips")
class ParallelTrips:
    """Bind the trips of parallel loops to a variable of 64 bits; the last pass for a host."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite the loops of one function that runs on a CPU."""
        if not is_for_cpu(func):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _bound), order="post"))


def _bound(loop: tirx.For) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.PARALLEL or _is_bound(loop.extent):
        return loop
    trips = tirx.Var("trips", "int64")
    var, body = loop.loop_var, loop.body
    if str(var.ty.dtype) != "int64":
        wide = tirx.Var(var.name, "int64")
        body = tirx.SeqStmt([tirx.Bind(var, tirx.Cast(str(var.ty.dtype), wide)), body])
        var = wide
    bound = tirx.For(
        var, tirx.IntImm("int64", 0), trips, loop.kind, body, annotations=loop.annotations
    )
    return tirx.SeqStmt([tirx.Bind(trips, _wide(loop.extent)), bound])


def _is_bound(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.Var) and str(extent.ty.dtype) == "int64"


def _wide(extent: ir.Expr) -> ir.Expr:
    return extent if str(extent.ty.dtype) == "int64" else tirx.Cast("int64", extent)
