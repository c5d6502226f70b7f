"""Rules by name: laws, those that users register, recompositions, passes that are one rule."""

from collections.abc import Collection

from ..core.registry import Registry
from ..errors import unknown_name
from .egraph.law import Law
from .laws import LAWS, allowed
from .recompose.patterns import PATTERNS

#: Rules that are passes, and what they write.
PASSES = {
    "unread_parts": "f(x)[part] = f(x[part]) for products, norms and attention",
    "byte_products": "products of quantised tensors multiply bytes",
    "batch_matmuls": "[x A | y B] = [x, y] [A, B], a batched product",
    "join_matmuls": "x A, x B = x [A | B]",
    "transposed_phases": "a transposed convolution is a convolution of all phases, on CPUs",
    "norm_statistics": "norm(x) W = rstd(x) (x W'), with statistics from the product before it",
    "rounded_activations": "products with packed weights read activations of int8, on CPUs",
    "peer_sums": "small sums over workers, with residual and norm, are kernels over peers' memory",
    "weights_along_k": "constant matrices are stored along K where their kernels read along K",
}


def laws(allow: Collection[str] = (), without: Collection[str] = ()) -> tuple[Law, ...]:
    """List the laws that may be used, registered ones last.

    Parameters
    ----------
    allow
        Flags: laws that need none of the others.
    without
        Names of rules that are switched off.
    """
    return allowed(allow, without, (*LAWS, *_registry.added))


def unused(allow: Collection[str] = (), without: Collection[str] = ()) -> dict[str, str]:
    """Say which rules may not be used, by name, and why."""
    found = {name: "switched off" for name in without}
    used = {law.name for law in laws(allow, without)}
    for law in (*LAWS, *_registry.added):
        if law.name not in used:
            found.setdefault(law.name, f"takes --allow {law.needs}")
    return found


def names() -> tuple[str, ...]:
    """List the names of all rules."""
    found = [
        *(law.name for law in (*LAWS, *_registry.added)),
        *(pattern.name for pattern in PATTERNS),
        *PASSES,
    ]
    return tuple(dict.fromkeys(found))


def check_names(given: Collection[str]) -> None:
    """Raise a UserError for a name that no rule has."""
    known = names()
    for name in given:
        if name not in known:
            raise unknown_name("rule", name, known)


_registry: Registry[Law] = Registry(Law, "rule", names)
register, registered = _registry.register, _registry.registered
