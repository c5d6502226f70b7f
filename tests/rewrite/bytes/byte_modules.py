"""Types of quantised tensors, and what the pass makes of modules of them."""

from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.decisions import recording


def tensor(*shape, dtype="uint8"):
    return relax.TensorType(shape, dtype)


def rewritten(mod):
    """The module after the pass, which has nothing left to do, and the codes of its decisions."""
    with recording() as log:
        after = transform.ByteProducts()(mod)
    relax.analysis.well_formed(after)  # raises
    assert transform.ByteProducts()(after).same_as(after)
    return after, [d.code for d in log]
