"""Register exceptions with TVM's foreign function interface, so that they keep their types.

What a pass written in Python raises goes through C++ and becomes a ``RuntimeError`` there unless
its name is registered: an interrupt would be caught by whatever catches errors, and work would go
on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tvm_ffi

from ..errors import UserError


def register_errors() -> None:
    """Let a user's mistake and an interrupt arrive as themselves."""
    tvm_ffi.register_error("UserError", UserError)
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


@contextmanager
def telling_of_large_extents() -> Iterator[None]:
    """Turn what TVM 0.27 raises for tensors beyond its arithmetic into a sentence.

    Its analyses write factors of int64 extents as int32, and a billion times a few are none.
    """
    try:
        yield
    except ValueError as error:
        if "exceeds range of int32" not in str(error):
            raise
        found = "a tensor has more elements along an axis than TVM can divide among loops"
        raise UserError(found, None, "split it along that axis") from error
