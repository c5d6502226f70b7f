"""The templates of each kind of target, in the order in which they are asked."""

from __future__ import annotations

from tvm.target import Target

from .contraction.template import Contraction
from .elementwise.template import Elementwise
from .rows.template import Rows
from .single.template import Single
from .template import Template


def _templates(is_gpu: bool) -> tuple[Template, ...]:
    return (Elementwise(is_gpu), Rows(), Contraction(is_gpu), Single(is_gpu))


_CPU, _GPU = _templates(False), _templates(True)


def templates(target: Target) -> tuple[Template, ...]:
    """List the templates that make kernels for a target; equally cheap claims go to the first."""
    return _GPU if "gpu" in target.keys else _CPU


def template(name: str, target: Target) -> Template:
    """Find a template by the name that it left in the IR.

    Raises
    ------
    KeyError
        For a name that no template of the target has.
    """
    return {t.name: t for t in templates(target)}[name]
