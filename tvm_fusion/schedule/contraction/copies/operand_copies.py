"""Copies of a product's operands in another form, which the kernel of the product reads instead.

kernel:        copy = form(operand)          of what is known at run time: one kernel for all
compile time:  packed = form(constant)
kernel:        C = product of the copies
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, relax, tirx

from ....core.contract.template import Emission, Kernel, Slot
from ....core.tir.loops import Body, add, block, ceildiv, choose, constant, product, threads, when
from ....core.untouched import SCHEDULED
from ....device import Device
from ....program.program import Program
from ..mma.model import RATES
from ..problem.sum_of_products import SumOfProducts
from .implicit_gemm import ImplicitGemm

THREADS = 256  # of a block of the kernel that copies


@dataclass(frozen=True, eq=False)
class OperandCopies:
    """A product over copies of operands."""

    contraction: SumOfProducts  # over the copies
    # The operands that are copied, and what kernels read instead.
    sources: tuple[ir.Var, ...]
    copies: tuple[ir.Var, ...]
    # For each constant, makes the function that copies it at compile time; ``None`` for what is
    # copied at run time.
    packing: tuple[Callable[[], tirx.PrimFunc] | None, ...]
    # Makes the kernel that copies the others: its parameters are those, then their copies.
    kernel: Callable[[], tirx.PrimFunc]

    @property
    def launches(self) -> int:
        """Kernels of copies at run time: one, of all operands."""
        return int(bool(self._copied))

    @property
    def bytes(self) -> int:
        """Bytes that these read and write."""
        return sum(_size(a) + _size(b) for a, b in self._copied)

    @property
    def _copied(self) -> list[tuple[ir.Var, ir.Var]]:
        every = zip(self.sources, self.copies, self.packing, strict=True)
        return [(source, copy) for source, copy, packing in every if packing is None]

    def program(self, program: Program) -> Program:
        """Replace the operands among the inputs of a program."""
        copies = dict(zip(self.sources, self.copies, strict=True))
        return replace(program, inputs=tuple(copies.get(x, x) for x in program.inputs))

    def emission(self, program: Program, made: Emission) -> Emission:
        """Put the copies in front of a kernel.

        Parameters
        ----------
        program
            Of the group, over its own inputs.
        """
        positions = {x: n for n, x in enumerate(program.inputs)}
        pairs = zip(self.sources, self.packing, strict=True)
        packing = {positions[s]: packs() for s, packs in pairs if packs is not None}
        if not self._copied:
            return replace(made, packing=packing)
        own = len(made.workspaces)
        slots = {positions[s]: own + n for n, (s, _) in enumerate(self._copied)}

        def over_copies(kernel: Kernel) -> Kernel:
            reads = tuple(
                Slot("workspace", slots[x.index]) if x.kind == "input" and x.index in slots else x
                for x in kernel.reads
            )
            return replace(kernel, reads=reads)

        inputs = tuple(Slot("input", position) for position in slots)
        between = tuple(Slot("workspace", n) for n in slots.values())
        types = [relax.TensorType(list(c.ty.shape), str(c.ty.dtype)) for _, c in self._copied]
        first = Kernel(self.kernel(), inputs, between)
        kernels = (first, *map(over_copies, made.kernels))
        return Emission(kernels, (*made.workspaces, *types), packing)


def copy_kernel(params: Sequence[ir.Var], pieces: Sequence[tuple[ir.Expr, Body]]) -> tirx.PrimFunc:
    """Make a kernel of copies: the tasks of all pieces, one behind the other, a thread each.

    Parameters
    ----------
    params
        The operands, then their copies.
    pieces
        How many tasks there are of a kind, and what one of them does.
    """
    total = add([count for count, _ in pieces])

    def of_block(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            task = number * THREADS + thread
            whole = constant(total)
            body = choose(task, pieces)
            return body if whole is not None and whole % THREADS == 0 else when(task < total, body)

        return threads("threadIdx.x", THREADS, of_thread)

    grid = threads("blockIdx.x", ceildiv(total, THREADS), of_block)
    func = tirx.PrimFunc([*params], block("root", grid))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})


def copies_clocks(copies: OperandCopies, device: Device) -> float:
    """Estimate the time of the copies at run time, in clocks of a multiprocessor."""
    return copies.bytes / (RATES.dram * (device.sm_count or 1)) + copies.launches * RATES.launch


def packing_clocks(convolution: ImplicitGemm, device: Device) -> float:
    """Estimate the time of packing a weight at run time, in clocks of a multiprocessor."""
    size = packing_bytes(convolution)
    return size / (RATES.dram * (device.sm_count or 1)) + RATES.launch


def packing_bytes(convolution: ImplicitGemm) -> int:
    """Count what a kernel that packs a weight reads and writes."""
    return _size(convolution.source) + _size(convolution.packed)


def _size(buffer: ir.Var) -> int:
    return int(product(buffer.ty.shape)) * DataType(str(buffer.ty.dtype)).itemsize
