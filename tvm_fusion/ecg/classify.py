"""Mapping types of a PrimFunc, per input and output, read from its index relation alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import tvm_ffi
from tvm import tirx

from .access import read_accesses
from .decide import Pair, decide
from .loads import Unreadable
from .mapping import MappingType, most_complex

_REMEMBERED = 4096  # different PrimFuncs; a large model has hundreds


@dataclass(frozen=True)
class Classification:
    """What a PrimFunc's outputs depend on.

    Attributes
    ----------
    pairs
        By index of the input and index of the output, both among the PrimFunc's parameters. Pairs
        that do not depend on each other are absent.
    reason
        Why the function is Opaque: a sentence. Empty if it is not.
    """

    pairs: Mapping[tuple[int, int], Pair] = field(default_factory=dict)
    reason: str = ""

    @property
    def type(self) -> MappingType:
        """The most complex pair's; One-to-One for a function without tensor input."""
        if self.reason:
            return MappingType.OPAQUE
        return most_complex(pair.type for pair in self.pairs.values())

    def operand(self, index: int) -> MappingType | None:
        """Return the most complex type over the outputs of one input; None if none depends on it.

        Parameters
        ----------
        index
            Position of the input among the PrimFunc's parameters.
        """
        if self.reason:
            return MappingType.OPAQUE
        types = [pair.type for (source, _), pair in self.pairs.items() if source == index]
        return most_complex(types) if types else None


def classify(func: tirx.PrimFunc) -> Classification:
    """Find the mapping type of every (input, output) pair of a PrimFunc.

    Names and attributes play no part; equal functions are analysed once.

    Parameters
    ----------
    func
        A PrimFunc of any number of blocks, with static or symbolic shapes.

    Returns
    -------
    Classification
        Opaque with a reason if the analysis does not understand the function; never raises.
    """
    return _of_object(func)


@lru_cache(maxsize=_REMEMBERED)
def _of_object(func: tirx.PrimFunc) -> Classification:
    """Look up a function that is there many times without hashing its structure."""
    bare = tirx.PrimFunc(func.params, func.body, func.ret_type)
    return _classify(tvm_ffi.StructuralKey(bare))


@lru_cache(maxsize=_REMEMBERED)
def _classify(key: tvm_ffi.StructuralKey) -> Classification:
    try:
        return Classification(_pairs(key.key))
    except Unreadable as error:
        return Classification(reason=f"The function {error}.")
    except Exception as error:  # TVM's analyses raise internal errors on rare index expressions
        lines = str(error).strip().splitlines() or [""]
        return Classification(reason=f"The analysis failed: {type(error).__name__}: {lines[-1]}.")


def _pairs(func: tirx.PrimFunc) -> dict[tuple[int, int], Pair]:
    position = {param: k for k, param in enumerate(func.params)}
    return {
        (position[source], position[output]): decide(
            reads, accesses.dims, output.ty.shape, source.ty.shape
        )
        for output, accesses in read_accesses(func).items()
        for source, reads in accesses.reads.items()
    }
