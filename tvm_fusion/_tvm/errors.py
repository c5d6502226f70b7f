"""Exceptions that TVM's foreign function interface has to know, or it makes others of them.

What a pass written in Python raises goes through C++ and becomes a ``RuntimeError`` there unless
its name is registered: an interrupt would be caught by whatever catches errors, and work would go
on.
"""

from __future__ import annotations

import tvm_ffi

from ..errors import UserError


def register_errors() -> None:
    """Let a user's mistake and an interrupt arrive as themselves."""
    tvm_ffi.register_error("UserError", UserError)
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
