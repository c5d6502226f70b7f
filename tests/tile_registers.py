"""Tests that run AMX: they ask Linux for permission, once in a process, or skip."""

import ctypes
import functools

import pytest

from tvm_fusion.device import parse

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def permitted():
    """Whether this CPU has tile registers, and this process may use them."""
    if not any(one.name == "amx" for one in parse("cpu").device.matrix_instructions):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def need_tiles():
    if not permitted():
        pytest.skip("no AMX here")
