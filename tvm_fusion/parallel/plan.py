"""What is decided about a model on several workers, and how tensors are spread over them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from tvm.ir import GenericConst

from ..core.shards import Shard

#: Codes of decisions about what workers have, and of their sums.
OF_WORKERS = ("sharded", "shard_costs_more", "shard_uneven", "shard_branches", "peer_sum")
Key = Any  # of a weight, the hash of its constant; of an input, its name


@dataclass(frozen=True)
class Split:
    """A tensor of which each worker has a part; ``key`` names a weight or input that caused it."""

    shard: Shard
    key: Key


@dataclass(frozen=True)
class Partial:
    """A tensor that is the sum of what the workers have.

    ``dtype`` is that of the operands whose products are added up: half ones travel as such.
    """

    key: Key
    dtype: str


State = Split | Partial | None  # None: each worker has the whole tensor


class Restart(Exception):
    """The plan has changed while a function was rewritten by it."""


@dataclass(frozen=True)
class Product:
    """A product of which each worker computes a part."""

    name: str  # of its weight
    # Of the whole product.
    weight_bytes: float
    flops: float


@dataclass(frozen=True)
class Collective:
    """An exchange between the workers.

    Attributes
    ----------
    kind : {"allreduce", "allgather"}
        What it does.
    nbytes
        Of the whole tensor.
    """

    kind: str
    nbytes: float


@dataclass
class Region:
    """Weights and inputs that are split together, or not at all."""

    products: list[Product] = field(default_factory=list)  # in all functions
    collectives: list[Collective] = field(default_factory=list)  # what splitting them costs
    # By name of each weight, how it is split: its columns, rows or heads.
    roles: dict[str, str] = field(default_factory=dict)


class Plan:
    """Decisions so far; rewriting a function may add to them, and then begins again.

    Parameters
    ----------
    roles
        By pattern of weights' names, one of :data:`tvm_fusion.config.ROLES`; the first that fits
        counts.
    names : mapping of int to str
        Of weights, by key.
    """

    def __init__(self, size: int, roles: Mapping[str, str], names: Mapping[Key, str]) -> None:
        self.size, self._roles, self._names = size, dict(roles), names
        self.known = list(names)
        self.whole: set[Key] = set()
        self.uneven: set[Key] = set()
        self.inputs: dict[str, Shard] = {}
        self.is_stale = False  # what was rewritten took inputs for whole that are split now
        # Parts of constants by worker, constant and shard: what begins again cuts none twice.
        self.parts: dict[tuple[int, Key, Shard], GenericConst] = {}
        self._cuts: dict[Key, set[int]] = {}
        self._parents: dict[Key, Key] = {}

    def name(self, key: Key) -> str:
        """Return what the model calls a weight."""
        return self._names.get(key, key if isinstance(key, str) else "a constant")

    def role(self, key: Key) -> str | None:
        """Return what the user says of a weight."""
        name = self._names.get(key)
        if name is None:
            return None
        own = innermost(name)
        return next((r for p, r in self._roles.items() if fnmatchcase(own, p)), None)

    def may_split(self, key: Key) -> bool:
        """Tell whether a weight may be split at all."""
        return key not in self.whole and self.role(key) != "whole"

    def segments(self, key: Key, extent: int) -> tuple[int, ...] | None:
        """Return the segments of a weight's columns, each divisible; ``None`` if they are not."""
        ends = [0, *sorted(self._cuts.get(key, ())), extent]
        lengths = tuple(b - a for a, b in pairwise(ends))
        return lengths if all(n % self.size == 0 and n for n in lengths) else None

    def cut(self, key: Key, places: set[int]) -> None:
        """Split a weight's columns in segments that end at these places, and begin again."""
        known = self._cuts.setdefault(key, set())
        if not places <= known:
            known |= places
            raise Restart

    def split_input(self, name: str, shard: Shard) -> None:
        """Split an input that functions write to; who rewrites begins again when all are known."""
        self.inputs[name] = shard
        self.is_stale = True

    def root(self, key: Key) -> Key:
        """Return the key of a region."""
        while (parent := self._parents.get(key, key)) != key:
            key = parent
        return key

    def join(self, one: Key, other: Key) -> Key:
        """Make two regions one."""
        one, other = self.root(one), self.root(other)
        if one != other:
            self._parents[other] = one
        return one

    def forget_regions(self) -> None:
        """Begin again with each weight by itself."""
        self._parents.clear()
        self.uneven.clear()


def innermost(name: str) -> str:
    """Return a weight's own name: ``fc.weight`` of ``permute_dims(fc.weight)``."""
    return name[name.rfind("(") + 1 :].rstrip(")").split("#")[0]


def nbytes(shape: list[int], dtype: str) -> float:
    """Return the bytes of a tensor."""
    from tvm import DataType

    return math.prod(shape) * DataType(dtype).bits / 8
