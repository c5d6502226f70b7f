"""A file as an array in memory that is read when it is touched, without an open descriptor.

Python's ``mmap``, and numpy's over it, keep a copy of the descriptor for as long as the mapping is
there: a process that serves a thousand models would run out of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_C.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path) -> np.ndarray:
    """Map a file copy on write: what is written to the array does not reach the file.

    Parameters
    ----------
    path : Path
        May be empty.

    Returns
    -------
    numpy.ndarray
        Of bytes. The mapping goes with the last array over it.

    Raises
    ------
    OSError
        If the file cannot be read or mapped.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:  # which cannot be mapped
            return np.empty(0, np.uint8)
        return np.asarray(_Mapping(file.fileno(), size))


class _Mapping:
    """Memory that numpy's arrays refer to as their base."""

    def __init__(self, descriptor: int, size: int) -> None:
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        self._address = _C.mmap(None, size, rights, mmap.MAP_PRIVATE, descriptor, 0)
        if self._address == _FAILED:
            self._address = None
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._size, self._unmap = size, _C.munmap
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address, False),
        }

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size)
