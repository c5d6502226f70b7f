"""Lookups that cannot read outside of their table."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .engine import Scope, op_name, rewrite


@tvm.transform.module_pass(opt_level=0, name="ClampTake")
class ClampTake:
    """``take(x, i, mode="fast") = take(x, i, mode="clip")``.

    The importer's mode reads whatever memory an index beyond the table points at, and warns of that
    at every lookup. A token id that is out of range must not end the process; clamping it costs two
    integer operators a row. For all indices in range nothing changes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every function that is ours."""
        return rewrite(mod, _clamp)


def _clamp(value: Any, _scope: Scope) -> Any:
    if op_name(value) != "relax.take" or str(value.attrs.mode) != "fast":
        return None
    axis = value.attrs.axis
    return relax.op.take(*value.args, axis=None if axis is None else int(axis), mode="clip")
