"""Memory of each worker's GPU that kernels of the others write to, over CUDA's IPC handles."""

import ctypes
import functools

import numpy as np
import tvm_ffi

from ...._tvm.cuda import load_cudart
from ....core.peer_memory import nbytes
from ....errors import UserError
from .peers import Peers

_HANDLE_BYTES = 64
_ENABLE_PEER_ACCESS = 1
_NON_BLOCKING = 1
_ADVICE = "compile the model again without the rule peer_sums, whose sums NCCL computes then"


class _Handle(ctypes.Structure):
    """CUDA's ``cudaIpcMemHandle_t``."""

    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


@functools.cache
def cudart() -> ctypes.CDLL:
    """Return CUDA's runtime with the types of these functions' arguments."""
    opened = load_cudart()
    opened.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    opened.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    opened.cudaFree.argtypes = opened.cudaIpcCloseMemHandle.argtypes = [ctypes.c_void_p]
    opened.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), ctypes.c_void_p]
    opened.cudaIpcOpenMemHandle.argtypes = [ctypes.c_void_p, _Handle, ctypes.c_uint]
    opened.cudaStreamCreateWithFlags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    opened.cudaMemsetAsync.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
    ]
    return opened


class PeerMemory:
    """One worker's memory, opened by all others; every worker makes one.

    Parameters
    ----------
    device
        The worker's GPU, which is the present one of this thread.

    Attributes
    ----------
    addresses : numpy.ndarray
        By rank, where the workers' memory is for this one's kernels; then its own rank.

    Raises
    ------
    UserError
        On all workers where a GPU does not reach another's memory.
    """

    def __init__(self, peers: Peers, device: tvm_ffi.Device) -> None:
        self._device, self._opened = device, list[int]()
        self._own, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.addresses = np.full(peers.size + 1, peers.rank, "int64")
        try:
            self._exchange(peers, self._make(peers))
        except UserError:
            self.close()
            raise

    def _make(self, peers: Peers) -> _Handle:
        """Take the own memory, and return what others open it by."""
        own, size = _Handle(), nbytes(peers.size)
        code = cudart().cudaMalloc(ctypes.byref(self._own), size)
        code = code or cudart().cudaMemset(self._own, 0, size)
        code = code or cudart().cudaDeviceSynchronize()
        code = code or cudart().cudaIpcGetMemHandle(ctypes.byref(own), self._own)
        code = code or cudart().cudaStreamCreateWithFlags(ctypes.byref(self._stream), _NON_BLOCKING)
        _agree(peers, code)
        return own

    def _exchange(self, peers: Peers, own: _Handle) -> None:
        """Open the others' memory."""
        handles = np.empty((peers.size, _HANDLE_BYTES), np.uint8)
        peers.all_gather(np.frombuffer(bytes(own), np.uint8), handles.reshape(-1))
        code = 0
        for rank, handle in enumerate(handles):
            at = ctypes.c_void_p(self._own.value)
            if rank != peers.rank and not code:
                other = _Handle.from_buffer_copy(handle.tobytes())
                code = cudart().cudaIpcOpenMemHandle(ctypes.byref(at), other, _ENABLE_PEER_ACCESS)
                self._opened += [at.value] if at.value and not code else []
            self.addresses[rank] = at.value or 0
        _agree(peers, code)

    def abort(self) -> None:
        """Let kernels stop waiting; from any thread."""
        cudart().cudaSetDevice(self._device.index)
        if self._own:
            cudart().cudaMemsetAsync(self._own, 1, 4, self._stream)

    def close(self) -> None:
        """Free the memory, once the other workers have ended."""
        cudart().cudaSetDevice(self._device.index)
        for address in self._opened:
            cudart().cudaIpcCloseMemHandle(address)
        own, self._own, self._opened = self._own, ctypes.c_void_p(), []
        cudart().cudaFree(own)


def _agree(peers: Peers, code: int) -> None:
    """Raise on all workers where one has an error of CUDA's."""
    found = f"worker {peers.rank} does not reach the other GPUs' memory (CUDA error {code})"
    said = peers.agree(found if code else "")
    if said:
        raise UserError(said, "GPUs that NVLink or PCIe peer access connects", _ADVICE)
