"""Workarounds for bugs of TVM versions, each with a test that fails when it can go.

* ``versions``: the ones that are known. ``ir/``: the IR. ``errors``,
  ``ffi_speed``: exceptions and functions through the FFI.
* ``cuda``: machine code without a driver; ``fork``: threads in children; ``log``: lines of TVM.
"""

from .versions import register_pipelines

__all__ = ["register_pipelines"]
