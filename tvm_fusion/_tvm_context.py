"""Copies of TVM's pass contexts with other options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.ir.transform import PassContext


def with_options(context: PassContext, options: Mapping[str, Any]) -> PassContext:
    """Make a copy of a context with some options set."""
    return PassContext(
        opt_level=context.opt_level,
        required_pass=list(context.required_pass),
        disabled_pass=list(context.disabled_pass),
        instruments=list(context.instruments),
        config={**context.config, **options},
    )
