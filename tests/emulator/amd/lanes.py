"""Which lane another one reads: DPP controls, and the instructions that move between lanes."""

import functools
import re

import numpy as np

from .text import Instruction, Unsupported

_ROW = 16


def dpp_lanes(inst: Instruction, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lanes that a DPP instruction reads from, and where there are such."""
    for name, value in inst.modifiers.items():
        if name in _CONTROLS or name == "dpp8":
            return _lanes(name, value, lanes)
    raise Unsupported(f"the DPP control of {inst.text!r}")


@functools.cache
def _lanes(name: str, value: str, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    own = np.arange(lanes)
    if name in ("quad_perm", "dpp8"):
        order = [int(x) for x in re.findall(r"\d+", value)]
        return own // len(order) * len(order) + np.array(order)[own % len(order)], own >= 0
    amount = int(value or "0", 0)
    at, valid = _CONTROLS[name](own, amount, lanes)
    return np.where(valid, at, own), np.broadcast_to(valid, own.shape)


def _in_row(own, at):
    return at, (at // _ROW == own // _ROW) & (at >= 0)


_CONTROLS = {
    "quad_perm": None,
    "row_shl": lambda own, n, _: _in_row(own, own + n),
    "row_shr": lambda own, n, _: _in_row(own, own - n),
    "row_ror": lambda own, n, _: (own // _ROW * _ROW + (own - n) % _ROW, own >= 0),
    "row_mirror": lambda own, n, _: (own ^ (_ROW - 1), own >= 0),
    "row_half_mirror": lambda own, n, _: (own ^ (_ROW // 2 - 1), own >= 0),
    "row_newbcast": lambda own, n, _: (own // _ROW * _ROW + n, own >= 0),
    "row_share": lambda own, n, _: (own // _ROW * _ROW + n, own >= 0),
    "row_xmask": lambda own, n, _: (own // _ROW * _ROW + (own % _ROW ^ n), own >= 0),
    "wave_shl": lambda own, n, lanes: (own + 1, own + 1 < lanes),
    "wave_shr": lambda own, n, lanes: (own - 1, own > 0),
    "wave_rol": lambda own, n, lanes: ((own + 1) % lanes, own >= 0),
    "wave_ror": lambda own, n, lanes: ((own - 1) % lanes, own >= 0),
    # Lane 15 of a row to all of the next, lane 31 to the upper half.
    "row_bcast": lambda own, n, _: (
        (own // _ROW * _ROW - 1, own >= _ROW) if n == 15 else (own * 0 + 31, own >= 32)
    ),
}


def dpp_written(inst: Instruction, lanes: int, active: np.ndarray) -> np.ndarray:
    """Return the lanes that a DPP instruction writes."""
    own = np.arange(lanes)
    row, bank = inst.number("row_mask", 15), inst.number("bank_mask", 15)
    chosen = (row >> own // _ROW) & (bank >> own % _ROW // 4) & 1
    written = active & (chosen == 1)
    if inst.modifiers.get("bound_ctrl") is None and "fi" not in inst.modifiers:
        at, valid = dpp_lanes(inst, lanes)
        written = written & valid & active[:, at]
    return written
