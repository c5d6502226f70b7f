"""Products and convolutions of half types, as PyTorch types them.

TVM 0.27's PyTorch importer gives them float32 results; what follows in the program expects the
half type, so a bias cannot be added, and outputs change their type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tvm import relax

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose")
OPERATORS = (
    (relax.op.linear_algebra, "matmul"),
    *((relax.op.nn, name) for name in (*_CONVOLUTIONS, "conv3d_transpose")),
)
HALF = ("float16", "bfloat16")


@contextmanager
def half_results() -> Iterator[None]:
    """Let TVM's importer, meanwhile, give results of half types where both operands have one."""
    with ExitStack() as stack:
        for module, name in OPERATORS:
            if hasattr(module, name):
                changed = _typed(getattr(module, name))
                stack.enter_context(patch.object(module, name, changed))
        yield


def _typed(operator: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operator)
    def call(x: Any, weight: Any, *args: Any, **options: Any) -> Any:
        if all(str(getattr(e.ty, "dtype", None)) in HALF for e in (x, weight)):
            options.pop("out_dtype", None)
        return operator(x, weight, *args, **options)

    return call
