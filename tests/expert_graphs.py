"""Graphs of products of experts: rows in groups, each multiplied by a matrix of its own."""

from relax_modules import main_module
from tvm import relax

from tvm_fusion.core.tir.ragged import grouped_matmul


def experts(rows=130, groups=4):
    """Rows by the matrix of their group, whose ends are the last argument."""
    params = [("x", (rows, 64)), ("w", (groups, 64, 64))]
    params = [relax.Var(name, relax.TensorType(shape, "float16")) for name, shape in params]
    params.append(relax.Var("ends", relax.TensorType((groups,), "int32")))

    def body(emit, x, w, ends):
        builder = relax.BlockBuilder.current()
        return emit(builder.call_te(grouped_matmul, x, w, ends, "float32"))

    return main_module(params, body)
