"""Buffers of S-TIR functions that TVMScript reads back as they were written.

TVM's ``decl_buffer`` gives every buffer TIRx's default layout, which S-TIR does not use, does not
print and does not read; and TVMScript prints stores to an allocated buffer of one element like
assignments of a variable, which it then refuses to read twice.
"""

from collections.abc import Sequence
from typing import Any

from tvm import tirx


def declare(shape: Sequence[Any], dtype: str, name: str, scope: str = "") -> tirx.Buffer:
    """Declare a buffer without a layout."""
    return tirx.decl_buffer(list(shape), dtype, name, scope=scope, layout=None)


def scratch(shape: Sequence[Any], dtype: str, name: str, scope: str = "") -> tirx.Buffer:
    """Declare a buffer that a kernel allocates; one element becomes two."""
    extents = list(shape)
    is_scalar = len(extents) == 1 and isinstance(extents[0], int | tirx.IntImm)
    if is_scalar and int(extents[0]) == 1:
        extents = [2]
    return declare(extents, dtype, name, scope)
