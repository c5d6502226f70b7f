"""Waves that stand at the same instruction: their registers, as arrays over waves and lanes.

An instruction is executed for all waves of a group at once. Where waves branch apart a group is
split, and groups that meet are joined, which :mod:`machine` looks after.

A register that holds bits that nothing has written is in ``unclean``, and ``undefined`` has those
bits: uninitialised registers may be moved about, but not be stored, branched on or used as an
address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .registers import AGPR, EXEC, SCALARS, SGPR

FULL = np.uint32(0xFFFFFFFF)
_VIEWS = {
    "u32": "u4", "i32": "i4", "f32": "f4", "u16": "u2", "i16": "i2", "f16": "f2", "u8": "u1",
    "i8": "i1", "b32": "u4", "b16": "u2", "bf16": "u2",
}  # fmt: skip


class Group:
    """Waves with the same program counter.

    Parameters
    ----------
    ids : array of int
        The waves' numbers in the machine.
    lanes
        Of a wave.
    vectors, accumulators
        How many registers of a lane the program names.
    """

    def __init__(self, ids: np.ndarray, lanes: int, vectors: int, accumulators: int):
        waves = len(ids)
        self.ids, self.lanes, self.pc = ids, lanes, 0
        self.vectors = vectors
        self.machine: Any = None
        self.waiting = self.ended = False
        self._hold(
            np.zeros((vectors + accumulators, waves, lanes), "u4"),
            np.zeros((SCALARS, waves), "u4"),
        )
        self.undefined = np.full((vectors + accumulators, waves, lanes), FULL)
        self.scalar_undefined = np.full((SCALARS, waves), FULL)
        self.unclean = {*range(vectors), *range(AGPR, AGPR + accumulators)}
        self.unclean |= set(range(SGPR, SGPR + EXEC))
        self.scc = np.zeros(waves, bool)
        self.set_exec(np.ones((waves, lanes), bool))

    def _hold(self, v: np.ndarray, s: np.ndarray) -> None:
        self.v, self.s = v, s
        self._none = np.zeros(v.shape[1], "u4")
        self.typed = {name: v.view(kind) for name, kind in _VIEWS.items()}
        self.typed_scalars = {
            name: s.view(kind) for name, kind in _VIEWS.items() if np.dtype(kind).itemsize == 4
        }

    def mistake(self, text: str) -> Exception:
        """Make an error about the instruction that runs."""
        return self.machine.mistake(text)

    def undefined_bits(self, register: int) -> np.ndarray:
        """Return which bits of a register nothing wrote: over waves, and lanes if it has them."""
        if register not in self.unclean:
            return self._none[:, None] if register < SGPR else self._none
        if register >= SGPR:
            return self.scalar_undefined[register - SGPR]
        return self.undefined[self.row(register)]

    def row(self, register: int) -> int:
        """Return the row of ``v`` of a vector register's number."""
        return register if register < AGPR else register - AGPR + self.vectors

    # Masks of lanes

    def set_exec(self, mask: np.ndarray) -> None:
        """Set which lanes are active."""
        self.exec = mask
        self.full = bool(mask.all())
        bits = self.bits(mask)
        self.s[EXEC] = bits & 0xFFFFFFFF
        self.s[EXEC + 1] = bits >> np.uint64(32)
        self.scalar_undefined[EXEC : EXEC + 2] = 0

    def bits(self, mask: np.ndarray) -> np.ndarray:
        """Pack a mask of lanes into integers of 64 bits."""
        mask = np.broadcast_to(mask, (len(self.ids), self.lanes))
        packed = np.packbits(mask, axis=1, bitorder="little")
        return packed.view("<u8" if self.lanes == 64 else "<u4")[:, 0].astype("u8")

    def mask(self, bits: np.ndarray) -> np.ndarray:
        """Unpack integers of 64 bits into a mask of lanes."""
        raw = np.ascontiguousarray(bits, "<u8").view("u1").reshape(-1, 8)[:, : self.lanes // 8]
        return np.unpackbits(raw, axis=1, bitorder="little").view(bool)

    def mask_of(self, register: int) -> np.ndarray:
        """Return the mask that scalar registers hold."""
        if register == SGPR + EXEC:
            return self.exec
        return self.mask(self.pair(register))

    def pair(self, register: int) -> np.ndarray:
        """Return 64 bits of a mask in scalar registers: of waves of 32 lanes, those of one."""
        low = self.s[register - SGPR].astype("u8")
        if self.lanes == 32:
            return low
        return low | self.s[register - SGPR + 1].astype("u8") << np.uint64(32)

    # Groups apart and together

    def take(self, which: np.ndarray) -> Group:
        """Make a group of some of the waves."""
        other = object.__new__(Group)
        other.ids, other.lanes, other.pc = self.ids[which], self.lanes, self.pc
        other.vectors, other.machine = self.vectors, self.machine
        other.waiting = other.ended = False
        other._hold(np.ascontiguousarray(self.v[:, which]), np.ascontiguousarray(self.s[:, which]))
        other.undefined = np.ascontiguousarray(self.undefined[:, which])
        other.scalar_undefined = np.ascontiguousarray(self.scalar_undefined[:, which])
        other.unclean = set(self.unclean)
        other.scc, other.exec = self.scc[which], self.exec[which]
        other.full = self.full or bool(other.exec.all())
        return other

    @staticmethod
    def join(groups: Sequence[Group]) -> Group:
        """Make a group of all waves of several, in the order of their numbers."""
        first = groups[0]
        ids = np.concatenate([g.ids for g in groups])
        order = np.argsort(-ids if first.machine.launch.reverse else ids)

        def joined(parts: list[np.ndarray], axis: int) -> np.ndarray:
            return np.ascontiguousarray(np.take(np.concatenate(parts, axis), order, axis))

        other = object.__new__(Group)
        other.ids, other.lanes, other.pc = ids[order], first.lanes, first.pc
        other.vectors, other.machine = first.vectors, first.machine
        other.waiting = other.ended = False
        unclean = set().union(*(g.unclean for g in groups))
        for g in groups:
            for register in unclean - g.unclean:
                g.clear(register)
        other._hold(joined([g.v for g in groups], 1), joined([g.s for g in groups], 1))
        other.undefined = joined([g.undefined for g in groups], 1)
        other.scalar_undefined = joined([g.scalar_undefined for g in groups], 1)
        other.unclean = unclean
        other.scc = joined([g.scc for g in groups], 0)
        other.exec = joined([g.exec for g in groups], 0)
        other.full = all(g.full for g in groups)
        return other

    def clear(self, register: int) -> None:
        """Set a register's undefined bits to none; ``unclean`` stays as it is."""
        if register >= SGPR:
            self.scalar_undefined[register - SGPR] = 0
        else:
            self.undefined[self.row(register)] = 0
