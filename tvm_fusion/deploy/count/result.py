"""What a count says: launches, copies, library calls and the bytes between them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["kernel", "copy", "library"]


@dataclass(frozen=True)
class Launch:
    """One kernel, copy or library routine, and how often one inference launches it.

    Attributes
    ----------
    kernel
        Name of the device function; on the CPU the buffer that the loop nest writes last; for
        copies and library calls the packed function's name.
    primfunc
        The PrimFunc that launches it; empty for what the Relax function calls itself.
    calls
        Launches in one inference.
    kind : {"kernel", "copy", "library"}
        A loop nest or device function of ours, a copy between memories, or an external routine.
    """

    kernel: str
    primfunc: str
    calls: int
    kind: Kind = "kernel"


@dataclass(frozen=True)
class Count:
    """Launches and intermediate bytes of one inference."""

    launches: tuple[Launch, ...]  # every distinct launch, in order of first use
    # Calls of PrimFuncs by the virtual machine; host functions that compute shapes are left out.
    calls: int
    # Bytes of tensors allocated between calls and not returned. Inputs, weights and constants are
    # not among them; views of one allocation count once, tensors that share planned storage each.
    visible_bytes: int
    hidden_bytes: int  # bytes of buffers inside PrimFuncs that are larger than a tile
    host_launches: int  # launches that the host makes: a CUDA graph is one
    # What the figures leave out, such as tensors whose shape depends on data; empty as a rule.
    caveats: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """All launches; copies and library calls are among them."""
        return sum(launch.calls for launch in self.launches)

    @property
    def copies(self) -> int:
        """Copies between memories, among :attr:`kernels`."""
        return self._of("copy")

    @property
    def library_calls(self) -> int:
        """Calls of external routines, among :attr:`kernels`."""
        return self._of("library")

    @property
    def intermediate_bytes(self) -> int:
        """Visible and hidden bytes together."""
        return self.visible_bytes + self.hidden_bytes

    def _of(self, kind: Kind) -> int:
        return sum(launch.calls for launch in self.launches if launch.kind == kind)
