"""Which target TVM is generating code for, while its callbacks ask for machine code."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...device import archs_of


@contextmanager
def building(kind: str) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Note the architectures of each module that TVM generates code for inside this block.

    TVM hands its callbacks a module's source or object, and not the target.

    Yields
    ------
    callable
        Returns the architectures of the module that is being generated.
    """
    import tvm_ffi

    name = f"target.build.{kind}"
    generate = tvm_ffi.get_global_func(name)
    here = threading.local()  # parts of a module are compiled in threads

    def noting(mod: Any, target: Any) -> Any:
        here.archs = tuple(archs_of(target))
        return generate(mod, target)

    tvm_ffi.register_global_func(name, noting, override=True)
    try:
        yield lambda: here.archs
    finally:
        tvm_ffi.register_global_func(name, generate, override=True)
