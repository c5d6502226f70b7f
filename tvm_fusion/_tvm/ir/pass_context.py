"""Copies of a pass context, which TVM shares and cannot enter twice."""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir.transform import PassContext


def copied(
    context: PassContext,
    config: Mapping[str, Any] | None = None,
    instruments: Sequence[Any] = (),
) -> PassContext:
    """Copy a context, with further options and with instruments of its own.

    Parameters
    ----------
    context
        What to copy; its instruments stay behind, as entering them again would start them anew.
    config
        Options that are added, or take the place of its own.
    """
    return PassContext(
        opt_level=context.opt_level,
        required_pass=list(context.required_pass),
        disabled_pass=list(context.disabled_pass),
        instruments=list(instruments),
        config={**dict(context.config), **(config or {})},
    )
