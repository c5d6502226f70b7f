"""Say where in a PyTorch module, and on which line of its source, an operator was called."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import fx

from ...errors import UserError
from ..reasons import reason_in_words
from .operator_errors import operator_name

_LINE = re.compile(r'File "([^"]+)", line (\d+)')
# Frames of torch's own are no place of the user's.
_TORCH = "site-packages/torch/"


def place_of(node: fx.Node) -> str:
    """Name the module and the line: ``layers.0.attention, model.py line 92``.

    Returns
    -------
    str
        Empty where torch has kept neither.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    path = path.removeprefix("L['self']").lstrip(".")
    frames = _LINE.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if _TORCH not in frame[0]] or frames
    line = f"{Path(own[-1][0]).name} line {own[-1][1]}" if own else ""
    return ", ".join(filter(None, [path, line]))


def located(convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
    """Let whatever a converter raises become one sentence that names the operator's place."""

    def converted(node: fx.Node) -> Any:
        try:
            return convert(node)
        except UserError as error:
            place = place_of(node)
            if not place or getattr(error, "is_located", False):
                raise
            found = UserError(f"{error.found} (at {place})", error.expected, error.advice)
            found.is_located = True  # type: ignore[attr-defined]
            raise found from (error.__cause__ or error)
        except Exception as error:
            place = place_of(node)
            where = f" (at {place})" if place else ""
            reason, advice = reason_in_words(error)
            fault = "its converter has a fault: report this sentence with the program"
            found = UserError(
                f"{operator_name(node)} cannot be converted ({reason}){where}",
                None,
                advice or fault,
            )
            found.is_located = True  # type: ignore[attr-defined]
            raise found from error

    return converted
