"""Values that threads exchange: results of reductions, lanes of shuffles."""

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.buffer import declare
from .._tvm.ir.target import target_kind
from ..core.tir.expressions import call_name
from ..core.tir.loops import find

# Lanes of shuffles as int32, as the AMD instruction takes them.
#
# TVM 0.27's LowerWarpMemory makes the lane to read from out of a buffer's index, which is int64
# where a symbolic dimension keeps NarrowDataType from narrowing. Its rule for AMD passes the lane
# as it is to ``llvm.amdgcn.ds.bpermute(i32, i32)``, and LLVM refuses the module.


SHUFFLES = frozenset({"tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down"})
_LANE = 2  # of mask, value, lane, width, warp size


@tirx.transform.prim_func_pass(opt_level=0, name="NarrowLanes")
class NarrowLanes:
    """Lower warp memory to shuffles of AMD GPUs whose lanes are int32."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an AMD GPU; others stay as they are."""
        if target_kind(func) != "rocm":
            return func
        func = tirx.transform.LowerWarpMemory()(ir.IRModule({"main": func}))["main"]
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _narrow), order="post"))


def _narrow(call: ir.Call) -> ir.Call:
    if call_name(call) not in SHUFFLES or str(call.args[_LANE].ty.dtype) == "int32":
        return call
    args = list(call.args)
    args[_LANE] = tirx.Cast("int32", args[_LANE])
    return ir.Call(call.op, args, call.attrs, call.ty_args, None, call.ty)


# Results of reductions across threads that are changed in place, in registers of each thread.
#
# TVM's StorageRewrite lets ``inverse = 1 / total`` overwrite ``total``, a register then. Where the
# threads of a reduction are not those of one warp, LowerThreadAllreduce puts ``total`` into shared
# memory behind it, and every thread overwrites what the others are about to read:
#
#     reduce(red_buf)                            reduce(red_buf); result = red_buf[group]
#     red_buf[group] = 1 / red_buf[group]   ->   result = 1 / result


_SCOPE = "reduce_scope"


@tirx.transform.prim_func_pass(opt_level=0, name="PrivateReductionResults")
class PrivateReductionResults:
    """Copy results in shared memory that threads change to registers, right behind reductions."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one device function; others have no such reductions."""
        scopes = [a for a in find(func.body, tirx.AttrStmt) if a.attr_key == _SCOPE]
        reduced = {s.buffer for a in scopes for s in find(a.body, tirx.BufferStore)}
        shared = {b for b in reduced if b.scope() == "shared"}
        if not shared:
            return func
        kept: list[tirx.AttrStmt] = []

        def hide(attr: tirx.AttrStmt) -> tirx.Stmt:
            if attr.attr_key != _SCOPE:
                return attr
            kept.append(attr)
            return tirx.AttrStmt(attr.node, _SCOPE, attr.value, tirx.Evaluate(len(kept) - 1))

        body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, hide), order="post")
        changed = {s.buffer: s.indices for s in find(body, tirx.BufferStore) if s.buffer in shared}
        if not changed:
            return func
        own = {b: declare([1], str(b.dtype), f"{b.name}_result", "local") for b in changed}

        def load(node: ir.TensorLoad) -> ir.Expr:
            return tirx.BufferLoad(own[node.source], [0]) if node.source in own else node

        def store(node: tirx.BufferStore) -> tirx.Stmt:
            held = own.get(node.buffer)
            return node if held is None else tirx.BufferStore(held, node.value, [0])

        def show(attr: tirx.AttrStmt) -> tirx.Stmt:
            if attr.attr_key != _SCOPE:
                return attr
            whole = kept[int(attr.body.value)]
            made = {s.buffer for s in find(whole.body, tirx.BufferStore)} & set(own)
            copies = [
                tirx.BufferStore(own[b], tirx.BufferLoad(b, changed[b]), [0])
                for b in own
                if b in made
            ]
            return tirx.SeqStmt([whole, *copies]) if copies else whole

        def allocate(stmt: tirx.AllocBuffer) -> tirx.Stmt:
            held = own.get(stmt.buffer)
            return stmt if held is None else tirx.SeqStmt([stmt, tirx.AllocBuffer(held)])

        for change in (
            (ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (tirx.AttrStmt, show),
            (tirx.AllocBuffer, allocate),
        ):
            body = tvm_ffi.structural_map(body, change, order="post")
        return func.with_body(body)
