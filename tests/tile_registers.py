"""Tests that run AMX: the process asks Linux for permission, once, or they skip."""

import ctypes
import functools
import platform

import pytest

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def permitted():
    """Whether this process may use tile registers."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def need_tiles():
    if not permitted():
        pytest.skip("no AMX here")
