"""Moves of values between the lanes of an AMD wave, as rows (CDNA3 and RDNA3 guides, "DPP").

An *exchange* gives each lane the value of the lane whose number differs in the bits of a mask. Data
parallel primitives (DPP) do so within rows of 16 lanes, as an operand of an addition that takes no
longer for it; RDNA's ``v_permlanex16`` exchanges the rows of a pair. A *broadcast* of CDNA gives
each lane the value of the last one of the row, or of the half of the wave, before its own; RDNA's
``v_permlanex16`` does for two rows. A *shift* moves values up within rows.

    all-reduce of n lanes:   for distance in 1, 2, 4, .. n / 2:
        x = combine(x, exchange(x, a mask whose highest bit is distance))

After each step all lanes of a block of ``2 * distance`` have the same value, so any lane of the
other half of the block will do. CDNA exchanges no rows: its steps of 16 and 32 combine broadcasts,
behind which the last lane of the block has the result, and scalar reads give it to all.

    prefix sums of n lanes:  for distance in 1, 2, 4, 8:  x = x + shift(x, distance)
                             for distance in 16, 32:      x = x + broadcast(x, distance), of the
                                                          lanes in the upper half of a block
"""

from dataclasses import dataclass
from functools import reduce
from operator import xor

from tvm import ir, tirx

from ...device import Device

ROW = 16  # lanes that DPP moves values between
_HALF_WAVE = 32


@dataclass(frozen=True)
class LaneMove:
    """One instruction, which reads another lane's value."""

    family: str  # as :attr:`tvm_fusion.device.Device.lane_moves` names it
    control: int = 0  # of a DPP instruction (``DPP_CTRL``); 0 of others
    # An exchange: lane l reads lane ``l ^ mask``; 0 for a broadcast, and where it stays.
    mask: int = 0
    # A broadcast: lane l reads lane ``l // block * block - 1``; the first block reads 0, of
    # ``permlanex16`` the last lane of the second.
    block: int = 0
    shift: int = 0  # lane l reads lane ``l - shift`` of its row; the first ones read 0

    def source(self, lane: int) -> int | None:
        """Return the lane that a lane reads; None where it gets 0."""
        if self.shift:
            return lane - self.shift if lane % ROW >= self.shift else None
        if not self.block:
            return lane ^ self.mask
        if self.family == "permlanex16":
            return (lane ^ ROW) | (ROW - 1)
        last = lane // self.block * self.block - 1
        return None if last < 0 else last

    def read(self, value: ir.Expr) -> ir.Expr:
        """Emit it: what other lanes hold of a number of 16, 32 or 64 bits."""
        dtype = str(value.ty.dtype)
        if self.family == "permlanex16":
            # Lane i of each row reads lane i of the other, or the last one: eight selectors of four
            # bits a word.
            selectors = (_int(0x76543210), _int(0xFEDCBA98 - (1 << 32)))
            if self.block:
                selectors = (_int(-1), _int(-1))
            flags = (tirx.const(True, "bool"), tirx.const(False, "bool"))
            name = "llvm.amdgcn.permlanex16"
            return tirx.call_llvm_intrin(dtype, name, value, value, *selectors, *flags)
        # All rows and banks of lanes are written; lanes that read nothing get 0.
        masks = (_int(0xF), _int(0xF), tirx.const(True, "bool"))
        operands = (tirx.const(0, dtype), value, _int(self.control), *masks)
        return tirx.call_llvm_intrin(dtype, "llvm.amdgcn.update.dpp", *operands)


def _quad(mask: int) -> LaneMove:
    """Make an exchange within four lanes (``quad_perm``)."""
    control = sum((lane ^ mask) << 2 * lane for lane in range(4))
    return LaneMove("dpp", control, mask)


STAY = _quad(0)  # each lane reads its own value
_ROW_XMASK = 0x160
LANE_MOVES = (
    *map(_quad, (1, 2, 3)),
    LaneMove("row_xmask", _ROW_XMASK + 4, 4),
    LaneMove("dpp", 0x141, 7),  # row_half_mirror
    LaneMove("dpp", 0x128, 8),  # row_ror:8
    LaneMove("dpp", 0x140, 15),  # row_mirror
    LaneMove("permlanex16", mask=ROW),
    LaneMove("row_bcast", 0x142, block=ROW),  # row_bcast:15
    LaneMove("row_bcast", 0x143, block=_HALF_WAVE),  # row_bcast:31
    LaneMove("permlanex16", block=ROW),
    *(LaneMove("dpp", 0x110 + shift, shift=shift) for shift in (1, 2, 4, 8)),  # row_shr
)


def exchange_moves(device: Device, mask: int) -> tuple[LaneMove, ...] | None:
    """Find what reads the lane whose number differs in the bits of a mask: one move, or two.

    Returns
    -------
    tuple of LaneMove or None
        In order; None where the device has no such instructions.
    """
    moves = [move for move in _moves(device) if move.mask]
    pairs = ((first, second) for first in moves for second in moves)
    chains = (*((move,) for move in moves), *pairs)
    return next((c for c in chains if reduce(xor, (m.mask for m in c)) == mask), None)


def all_reduce_moves(device: Device, lanes: int) -> list[LaneMove] | None:
    """List the moves of an all-reduce over neighbouring lanes of a wave, in order.

    Parameters
    ----------
    lanes
        How many share a result: a power of two. They begin at a multiple of it.

    Returns
    -------
    list of LaneMove or None
        None where the device has no such instructions. Behind broadcasts the last lane alone has
        the result: see :func:`from_last`.
    """
    distances = [1 << bit for bit in range(lanes.bit_length() - 1)]
    found = [_step(device, distance) for distance in distances]
    return None if None in found else [move for move in found if move is not None]


def scan_moves(device: Device, lanes: int) -> dict[int, LaneMove] | None:
    """Return the moves of prefix sums over neighbouring lanes, by their distances.

    Returns
    -------
    dict of int to LaneMove or None
        None where the device has no such instructions. Behind a shift the first lanes of each row,
        or of each ``lanes``, add nothing; behind a broadcast, which is of the distance of its
        block, those in the lower half of twice as many.
    """
    found = {}
    for distance in (1 << bit for bit in range(lanes.bit_length() - 1)):
        fitting = (m for m in _moves(device) if distance in (m.shift, m.block))
        move = next(fitting, None)
        if move is None:
            return None
        found[distance] = move
    return found


def from_last(device: Device, lanes: int, value: ir.Expr, lane: ir.Expr) -> ir.Expr:
    """Read the last of each ``lanes`` lanes: scalar reads, and a choice between them.

    Parameters
    ----------
    lane
        The lane's number in the wave.
    """

    def read(block: int) -> ir.Expr:
        last = _int((block + 1) * lanes - 1)
        return tirx.call_llvm_intrin(str(value.ty.dtype), "llvm.amdgcn.readlane", value, last)

    blocks = (device.warp_size or lanes) // lanes
    found = read(blocks - 1)
    for block in reversed(range(blocks - 1)):
        found = tirx.Select(lane < _int((block + 1) * lanes), read(block), found)
    return found


def _moves(device: Device) -> list[LaneMove]:
    return [move for move in LANE_MOVES if move.family in device.lane_moves]


def _step(device: Device, distance: int) -> LaneMove | None:
    """Find what brings the other half of a block of ``2 * distance`` lanes."""
    moves = _moves(device)
    fitting = (m for m in moves if distance <= m.mask < 2 * distance or m.block == distance)
    return next(fitting, None)


def _int(value: int) -> ir.Expr:
    return tirx.const(value, "int32")
