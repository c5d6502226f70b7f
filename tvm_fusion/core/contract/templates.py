"""Which templates are asked for kernels: those of this package, and those that users register.

The stages that plan ask here; the stage that schedules says which templates it has. So neither
imports the other.
"""

from collections.abc import Iterator

from tvm.target import Target

from ..registry import Registry
from .template import Template

_built_in: dict[str, tuple[Template, ...]] = {"cpu": (), "gpu": ()}


def _names() -> Iterator[str]:
    return (template.name for templates in _built_in.values() for template in templates)


# A template of one's own that is made for some kinds of devices refuses groups for the others, by
# ``device.kind``.
_registry: Registry[Template] = Registry(Template, "template", _names)
register, registered = _registry.register, _registry.registered


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
    return tuple(sorted((*reversed(_registry.added), *ours), key=lambda t: t.is_fallback))


def template(name: str, target: Target) -> Template:
    """Find a template by the name that it left in the IR.

    Raises
    ------
    KeyError
        For a name that no template of the target has.
    """
    return {t.name: t for t in templates(target)}[name]
