"""The kinds of recomposition, in the order in which they are looked for."""

from __future__ import annotations

from collections.abc import Collection

from .attention import Attention
from .gelu import Gelu, GeluTanh
from .group_norm import GroupNorm, InstanceNorm
from .hard_swish import HardSwish
from .kind import Kind
from .layer_norm import LayerNorm, RMSNorm
from .log_softmax import LogSoftmax
from .mish import Mish
from .rotary import Rotary
from .silu import Silu
from .softmax import Softmax

KINDS: tuple[Kind, ...] = (
    LogSoftmax(),
    Softmax(),
    Mish(),  # activations: those with the least common shape first, so that misses tell something
    HardSwish(),
    Silu(),
    Gelu(),
    GeluTanh(),
    GroupNorm(),  # before layer norm, which its parted channels are one of
    InstanceNorm(),
    LayerNorm(),
    RMSNorm(),
    Rotary(),
    Attention(),  # after softmax, which it is made of
)


def kinds(without: Collection[str] = ()) -> tuple[Kind, ...]:
    """List the kinds that are not switched off by name."""
    return tuple(kind for kind in KINDS if kind.name not in without)
