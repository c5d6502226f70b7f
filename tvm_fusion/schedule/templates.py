"""The templates of each kind of target, in the order in which they are asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm.target import Target

from ..errors import UserError
from .attention.template import Attention
from .contraction.norm_gemm_template import NormGemm
from .contraction.template_cpu import CpuContraction
from .contraction.template_gpu import GpuContraction
from .elementwise.template import Elementwise
from .rows.template import Rows
from .scan.template import PrefixSum
from .single.template import Single
from .template import Template


def _templates(is_gpu: bool) -> tuple[Template, ...]:
    return (
        Elementwise(is_gpu),
        Rows(),
        Attention(is_gpu),
        GpuContraction() if is_gpu else CpuContraction(),
        NormGemm(),
        PrefixSum(is_gpu),
        Single(is_gpu),
    )


_CPU, _GPU = _templates(False), _templates(True)
_registered: list[Template] = []


def templates(target: Target) -> tuple[Template, ...]:
    """List the templates that make kernels for a target; equally cheap claims go to the first.

    Registered ones come first, the last registered before the others; fallbacks come last.
    """
    ours = _GPU if "gpu" in target.keys else _CPU
    return tuple(sorted((*reversed(_registered), *ours), key=lambda t: t.is_fallback))


def template(name: str, target: Target) -> Template:
    """Find a template by the name that it left in the IR.

    Raises
    ------
    KeyError
        For a name that no template of the target has.
    """
    return {t.name: t for t in templates(target)}[name]


def register(template: Template) -> None:
    """Let a template of one's own be asked from now on, in this process and for every target.

    One that is made for some kinds of devices refuses groups for the others, by ``device.kind``.

    Parameters
    ----------
    template : Template
        Its name is not that of another one.

    Raises
    ------
    UserError
        If it has no name, or the name is taken.
    """
    name = getattr(template, "name", None)
    taken = [t.name for t in (*_registered, *_CPU, *_GPU)]
    if not isinstance(template, Template) or not isinstance(name, str) or not name:
        raise UserError(
            f"{template!r} cannot be registered",
            "an instance of a subclass of Template with a name",
            "set the attribute 'name' of the class, and register an instance of it",
        )
    if name in taken:
        raise UserError(
            f"there is a template '{name}' already",
            f"another name than {', '.join(dict.fromkeys(taken))}",
            "rename it",
        )
    _registered.append(template)


@contextlib.contextmanager
def registered(template: Template) -> Iterator[Template]:
    """Register a template as :func:`register` does, for the body of a ``with`` statement."""
    register(template)
    try:
        yield template
    finally:
        _registered.remove(template)
