"""What a device can do: the figures and capabilities that templates, claims and reports read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["llvm", "cuda", "rocm"]


@dataclass(frozen=True)
class MatrixInstruction:
    """An instruction D = A * B + C on tiles.

    Attributes
    ----------
    name : {"mma.sync", "wgmma", "mfma", "wmma", "v_dot", "v_dot_iu8", "amx"}
        PTX's ``mma.sync`` of a warp and ``wgmma.mma_async`` of four warps; AMD's MFMA (CDNA) and
        WMMA (RDNA) of a wave, and the dot products of one lane,
        without and with a sign for each operand; x86's AMX.
    dtype
        Of A and B; both 8-bit floating types, of the kind that the architecture has, are
        ``float8``.
    m, n, k
        A is m x k, B is k x n. For wgmma n is the largest: every multiple of 8 below exists for
        floating types, every multiple of 16 (and 8, 24) for int8.
    """

    name: str
    dtype: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Device:
    """One processor; a figure is None where it is not known, a capability False.

    Attributes
    ----------
    kind : {"llvm", "cuda", "rocm"}
        TVM's target kind.
    arch
        ``sm_80``, ``gfx942``, or LLVM's name of a CPU such as ``cascadelake``. Only
        :mod:`tvm_fusion.device` takes it apart or compares it.
    name
        The board or CPU that the figures belong to.
    features
        Instruction sets of a CPU that kernels use, by LLVM's names, sorted.
    max_threads_per_block
        Threads in one block that TVM's generated code may launch.
    shared_memory_per_block
        Bytes; the largest that a block may ask for, opt-in included.
    registers_per_block
        32-bit registers.
    shared_memory_per_sm, max_threads_per_sm
        Bytes and threads that the blocks resident on a multiprocessor or compute unit share.
    warp_size
        Lanes that execute together in generated kernels.
    sm_count
        Streaming multiprocessors or compute units.
    cores
        CPU threads that this process may use; None for a CPU that is only compiled for.
    vector_bits
        Width of a CPU's vector registers.
    fixed_vector_bits
        The same for vectors whose length a kernel fixes: without SVE, whose length LLVM scales.
    vector_registers
        How many vector registers a CPU's thread has.
    fused_multiply_add
        Whether a CPU multiplies and adds vectors in one instruction.
    vnni_bits, dpbf16_bits, int16_dot_bits
        Width of the widest vectors of x86's VPDPBUSD, which adds four products of bytes to an
        int32, of its VDPBF16PS, which adds two products of bfloat16 to a float32, and of its
        PMADDWD, which adds two products of int16.
    sdot_bits
        Width of the vectors of Arm's SDOT, which adds four products of signed bytes to an int32.
    l2_bytes, l3_bytes
        Caches. CPU: as one core sees them, shared levels at full size. GPU: the whole chip.
    memory_bandwidth
        Bytes per second.
    peak_flops
        Dense operations per second by dtype, on tensor or matrix units where the dtype has them.
    matrix_instructions
        Dense ones that TVM or its CUDA compiler can be made to emit.
    arithmetic
        Floating types narrower than float32 that scalar instructions add and multiply.
    lane_moves
        How an AMD wave moves values between its lanes without shared memory, as
        :mod:`tvm_fusion.schedule.instructions.lanes` names it.
    async_copy
        PTX's ``cp.async``: from global to shared memory without registers.
    tma
        PTX's ``cp.async.bulk.tensor`` and the mbarriers that wait for it.
    clusters
        Thread-block clusters with distributed shared memory.
    rounds_to_tf32
        Whether products of float32 matrices may round their operands to tfloat32, 10 bits behind
        the leading one: what the user allowed, not the device.
    approximates
        Whether results of a CPU's kernels may differ by more than the dtype's tolerance, as those
        of Winograd's convolutions: what the user allowed, too.
    dependent_launch
        PTX's ``griddepcontrol``: a kernel may be launched while the one before still runs.
    device_library
        Names of the instruction set in AMD's library of bitcode; older libraries lack newer names,
        whose code is then that of the nearest relative.
    """

    kind: Kind
    arch: str
    name: str
    features: tuple[str, ...] = ()
    max_threads_per_block: int | None = None
    shared_memory_per_block: int | None = None
    registers_per_block: int | None = None
    shared_memory_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    warp_size: int | None = None
    sm_count: int | None = None
    cores: int | None = None
    vector_bits: int | None = None
    fixed_vector_bits: int | None = None
    vector_registers: int | None = None
    fused_multiply_add: bool = False
    vnni_bits: int | None = None
    int16_dot_bits: int | None = None
    dpbf16_bits: int | None = None
    sdot_bits: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    memory_bandwidth: float | None = None
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    matrix_instructions: tuple[MatrixInstruction, ...] = ()
    arithmetic: tuple[str, ...] = ()
    lane_moves: tuple[str, ...] = ()
    async_copy: bool = False
    tma: bool = False
    clusters: bool = False
    rounds_to_tf32: bool = False
    approximates: bool = False
    dependent_launch: bool = False
    device_library: tuple[str, ...] = ()

    def has_matrix(self, name: str, dtype: str, shape: tuple[int, int, int] | None = None) -> bool:
        """Tell whether the device has a matrix instruction, of any shape (m, n, k) or of one."""
        shapes = self.matrix_shapes(name, dtype)
        return bool(shapes) if shape is None else shape in shapes

    def matrix_shapes(self, name: str, dtype: str) -> tuple[tuple[int, int, int], ...]:
        """List the shapes (m, n, k) of a matrix instruction for a dtype."""
        found = self.matrix_instructions
        return tuple((i.m, i.n, i.k) for i in found if (i.name, i.dtype) == (name, dtype))
