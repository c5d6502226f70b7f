"""What a device can do: the figures that cost models, claims and roofline reports read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["llvm", "cuda", "rocm"]


@dataclass(frozen=True)
class Device:
    """One processor; a field is None where no figure is known.

    Attributes
    ----------
    kind : {"llvm", "cuda", "rocm"}
        TVM's target kind.
    arch : str
        ``sm_80``, ``gfx942``, or LLVM's name of a CPU such as ``cascadelake``.
    name : str
        The board or CPU that the figures belong to.
    features : tuple of str
        Instruction sets of a CPU that kernels use, by LLVM's names, sorted.
    max_threads_per_block : int, optional
        Threads in one block that TVM's generated code may launch.
    shared_memory_per_block : int, optional
        Bytes; the largest that a block may ask for, opt-in included.
    registers_per_block, registers_per_thread : int, optional
        32-bit registers.
    warp_size : int, optional
        Lanes that execute together.
    sm_count : int, optional
        Streaming multiprocessors or compute units.
    cores : int, optional
        CPU threads that this process may use; None for a CPU that is only compiled for.
    vector_bits : int, optional
        Width of a CPU's vector registers.
    l1_bytes, l2_bytes, l3_bytes : int, optional
        Data caches. CPU: as one core sees them, shared levels at full size. GPU: the whole chip.
    memory_bandwidth : float, optional
        Bytes per second.
    peak_flops : mapping of str to float
        Dense operations per second by dtype, on tensor or matrix units where the dtype has them.
    """

    kind: Kind
    arch: str
    name: str
    features: tuple[str, ...] = ()
    max_threads_per_block: int | None = None
    shared_memory_per_block: int | None = None
    registers_per_block: int | None = None
    registers_per_thread: int | None = None
    warp_size: int | None = None
    sm_count: int | None = None
    cores: int | None = None
    vector_bits: int | None = None
    l1_bytes: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    memory_bandwidth: float | None = None
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
