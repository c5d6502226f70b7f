"""The recomposition patterns, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Collection

from .activations import HardSwish, Mish, Silu
from .attention import Attention
from .gelu import Gelu, GeluTanh
from .group_norm import GroupNorm, InstanceNorm
from .layer_norm import LayerNorm, RMSNorm
from .log_softmax import LogSoftmax
from .pattern import Pattern
from .rotary import Rotary
from .softmax import Softmax

PATTERNS: tuple[Pattern, ...] = (
    LogSoftmax(),
    Softmax(),
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
