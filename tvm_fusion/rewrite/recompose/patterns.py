"""The recomposition patterns, in the order in which they are tried."""

from collections.abc import Collection

from .activations import Gelu, GeluTanh, HardSwish, Mish, Silu
from .attention.attention import Attention
from .norms.group_norm import GroupNorm, InstanceNorm
from .norms.layer_norm import LayerNorm, RMSNorm
from .pattern import Pattern
from .rotary import Rotary
from .softmax import LateSoftmax, LogSoftmax, ShiftedSoftmax, Softmax

PATTERNS: tuple[Pattern, ...] = (
    LogSoftmax(),
    Softmax(),
    LateSoftmax(),
    ShiftedSoftmax(),
    Mish(),  # of activations, those whose mismatches tell most come first
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


def patterns(without: Collection[str] = ()) -> tuple[Pattern, ...]:
    """List the patterns that are not switched off by name."""
    return tuple(pattern for pattern in PATTERNS if pattern.name not in without)
