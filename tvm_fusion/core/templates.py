"""Which templates are asked for kernels: those of this package, and those that users register.

The stages that plan ask here; the stage that schedules says which templates it has. So neither
imports the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm.target import Target

from ..errors import UserError
from .template import Template

_registered: list[Template] = []
_built_in: dict[str, tuple[Template, ...]] = {"cpu": (), "gpu": ()}


def provide(cpu: tuple[Template, ...], gpu: tuple[Template, ...]) -> None:
    """Name the templates of this package for either kind of target, in the order of asking."""
    _built_in.update(cpu=cpu, gpu=gpu)


def templates(target: Target) -> tuple[Template, ...]:
    """List the templates that make kernels for a target; equally cheap claims go to the first.

    Registered ones come first, the last registered before the others; fallbacks come last.
    """
    ours = _built_in["gpu" if "gpu" in target.keys else "cpu"]
    if not ours:
        raise RuntimeError("no templates are known: import tvm_fusion.transform first")
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
    taken = [t.name for t in (*_registered, *_built_in["cpu"], *_built_in["gpu"])]
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
