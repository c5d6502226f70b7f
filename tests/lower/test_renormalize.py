"""Quotients of what is subtracted: TVM 0.27 makes others of them, so that no kernel has any."""

import tvm
from tvm import s_tir, sym, tirx

from tvm_fusion.core.tir.loops import find, index, substitute


def test_tvm_divides_wrongly_what_is_subtracted():
    """Once this fails, ``SplitBlock._steps`` may be a quotient of what is left for a block."""
    number = tirx.Var("number", "int64")
    left = index(0) - tirx.floormod(number, index(16)) * 128
    out = tirx.decl_buffer((34,), "int64", "out", layout=None)
    store = tirx.BufferStore(out, tirx.floordiv(left, index(2048)), [number])
    loop = tirx.For(number, index(0), index(34), tirx.ForKind.SERIAL, store)
    mod = tvm.IRModule({"main": tirx.PrimFunc([out], loop)})
    for made in (s_tir.transform.StmtSimplify(), s_tir.transform.RenormalizeSplitPattern()):
        mod = made(mod)
    (store,) = find(mod["main"].body, tirx.BufferStore)

    def value(i):
        return int(sym.Analyzer().simplify(substitute(store.value, {store.indices[0]: index(i)})))

    assert [value(i) for i in range(34)] != [-(i % 16) * 128 // 2048 for i in range(34)]
