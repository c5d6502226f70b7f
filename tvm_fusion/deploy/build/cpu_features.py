"""Which instruction sets of a CPU an artifact needs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import tvm
from tvm import ir, tirx
from tvm.target import codegen

from ..._tvm.ir.structural import structural_walk
from ...device import Device
from ...device.tile_permission import TILE_INTRINSICS, need_tiles

_CALL = ir.Op.get("tirx.call_llvm_intrin")


def needed_features(mod: tvm.IRModule, device: Device) -> list[str]:
    """List the instruction sets that a lowered module's code needs, by LLVM's names.

    LLVM may choose instructions of all that the target has, in any loop. AMX's it never chooses by
    itself: they count where kernels have them, and float32 models need no permission for tiles.
    """
    features = set(device.features)
    tiles = {feature for feature in features if need_tiles([feature])}
    return sorted(features - tiles | (_used_tiles(mod) if tiles else set()))


def _used_tiles(mod: tvm.IRModule) -> set[str]:
    found: set[str] = set()
    intrinsics = _by_number()

    def look(call: ir.Call) -> None:
        if call.op == _CALL and (feature := intrinsics.get(int(call.args[0]))):
            found.add(feature)

    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            structural_walk(func.body, (ir.Call, look))
    return found


@functools.cache
def _by_number() -> Mapping[int, str]:
    number = codegen.llvm_lookup_intrinsic_id
    return {int(number(name)): feature for name, feature in TILE_INTRINSICS.items()}
