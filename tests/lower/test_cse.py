"""Common subexpressions: what TVM makes of them, and that kernels are built without."""

import pytest
import tvm
from tvm import sym, tirx
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

from tvm_fusion.device import parse
from tvm_fusion.lower.expressions import OPTION, without_cse

TARGET = parse("cuda:sm_90a").tvm_target()


@T.prim_func(s_tir=True)
def kept_in_shared_memory(a: T.Buffer((4, 9), "float32"), out: T.Buffer((4, 9), "float32")):
    for r in T.thread_binding(4, thread="threadIdx.y"):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("one"):
                T.reads()
                T.writes()
                kept = T.sblock_alloc_buffer((4, 9), scope="shared")
                if t < 9:
                    kept[r, t] = a[r, t] + T.float32(1)
                    out[r, t] = kept[r, t] * T.float32(2)


def lower(func, context):
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    passes, _, _ = tirx.compilation_pipeline.PIPELINE_MAP["s_tir"]()
    with TARGET, context:
        return passes(tirx.transform.BindTarget(TARGET.with_host("llvm"))(mod))


def test_no_barrier_where_threads_keep_to_themselves():
    lowered = lower(kept_in_shared_memory, without_cse(PassContext.current()))
    assert "storage_sync" not in lowered.script()


def test_the_rest_of_a_context_stays():
    context = PassContext(
        opt_level=1, disabled_pass=["Some"], config={"tirx.disable_vectorize": True}
    )
    copy = without_cse(context)
    assert copy.opt_level == 1
    assert list(copy.disabled_pass) == ["Some"]
    assert dict(copy.config) == {"tirx.disable_vectorize": True, OPTION: True}


def test_tvm_still_asks_for_barriers_under_conditions():
    """Fails when TVM sees through its variables: then common subexpressions may be found again."""
    with pytest.raises(RuntimeError, match="Cannot insert syncs inside condition"):
        lower(kept_in_shared_memory, PassContext.current())


def test_tvm_still_cannot_bind_comparisons_of_vectors():
    """Fails when it can: then common subexpressions may be found again on CPUs."""
    lanes = tirx.Ramp(tirx.Var("n", "int32"), 1, 4)
    with pytest.raises(ValueError, match="IntImm can only take scalar"):
        sym.Analyzer().bind(tirx.Var("v", "boolx4"), lanes < tirx.Broadcast(lanes.base * 0 + 3, 4))
