"""The contract between the planner and the kernels: claim, propose, emit.

A group of operators is legal if, and only if, a template claims it; so planner and kernels cannot
disagree. A claim is a promise: the planner never asks twice, and what was claimed is emitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from tvm import ir, relax, tirx
from tvm.target import Target

from .kernel_work import NO_WORK, KernelWork

if TYPE_CHECKING:
    from ...device import Device
    from ...ecg.graph import Graph, Operator
    from ...program.group import Group
    from ..decisions import Decision
    from .forms import Form
    from .kernel_info import KernelInfo


TEMPLATE = "tvm_fusion.template"  # attribute of a group's function: which template claimed it
Ban = tuple[str, Hashable]  # template name and group structure, after a broken claim
Config = Mapping[str, int | str]  # a configuration as plain data: what a record of a tuner keeps
Details = TypeVar("Details")


@dataclass(frozen=True)
class Refusal:
    """Why a template does not take a group."""

    code: str  # stable, machine-readable reason, such as ``too_much_shared_memory``
    sentence: str  # the reason for a reader
    # Microseconds of what is refused, where they were measured and are the reason.
    measured_us: float | None = None


@dataclass(frozen=True, eq=False)
class RaggedExtents:
    """Extents of ragged rows: rows in groups that end at offsets known at run time."""

    # How many groups there are, and rows of all of them.
    groups: ir.Expr
    rows: ir.Expr


@dataclass(frozen=True, eq=False)
class Claim:
    """A template's promise to make a group's kernels, with what they will cost."""

    template: Template  # who promises
    group: Group  # what is promised
    launches: int  # kernels, exactly
    # Memory traffic: what is read and written, workspaces twice; symbolic dimensions count as
    # :data:`tvm_fusion.ecg.work.ASSUMED_DIM`.
    bytes: int
    flops: int  # arithmetic, recomputation included
    parallelism: int = 1  # independent pieces of work: blocks on a GPU, tasks on a CPU
    # On-chip memory of one block, registers of one thread; 0 where the template cannot say.
    shared_bytes: int = 0
    registers: int = 0
    # A word for a reader on how products are computed, such as ``3xTF32``; empty where they are
    # computed as the graph says.
    arithmetic: str = ""
    # At whose rate products run where it is not that of the operands of the graph, as
    # :attr:`tvm_fusion.device.Device.peak_flops` has it; else empty.
    matrix_dtype: str = ""
    # The rows of a product that are in groups, each with a matrix of its own.
    ragged: RaggedExtents | None = None
    # How the kernels load, compute and store, where the template can say.
    work: KernelWork = NO_WORK
    # What :meth:`Template.emit` wants to remember, such as tile sizes: a dataclass of the template,
    # which nobody else reads. See :meth:`details_as`.
    details: object = None
    # For the group with its images in the layout that the device prefers, while groups are planned:
    # the layout stage comes later, and plans are for the layouts that it will choose.
    laid_out: Claim | None = None
    # Operations that take as long at the share of the peak that the roofline assumes, where the
    # kernels reach another one; by default ``flops``.
    priced_flops: int | None = None

    @property
    def flops_to_price(self) -> int:
        """Operations that a price is made of."""
        return self.flops if self.priced_flops is None else self.priced_flops

    def details_as(self, kind: type[Details]) -> Details:
        """Return the details of a template's own claim.

        Parameters
        ----------
        kind
            The dataclass that the template keeps in its claims.

        Raises
        ------
        TypeError
            If another template made the claim.
        """
        if not isinstance(self.details, kind):
            found = type(self.details).__name__
            raise TypeError(f"{self.template.name} has {found} in its claims, not {kind.__name__}.")
        return self.details


@dataclass(frozen=True)
class Slot:
    """What a kernel's parameter is bound to: one of the group's tensors, or a workspace."""

    kind: Literal["input", "scalar", "output", "workspace"]
    index: int


@dataclass(frozen=True)
class Kernel:
    """One scheduled PrimFunc and what its parameters are bound to.

    Its host part may branch over symbolic dimensions between bodies that are launched differently
    (few rows, many rows); each way is one launch.
    """

    func: tirx.PrimFunc  # its parameters are what it reads, then what it writes
    # In the order of the parameters. A workspace is written before it is read.
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]


@dataclass(frozen=True)
class Emission:
    """What a template makes of a group."""

    kernels: tuple[Kernel, ...]  # launched in order
    # Buffers between the kernels, over the group's symbolic variables, placed by the memory
    # planner.
    workspaces: tuple[relax.TensorType, ...] = ()
    # Per input, a function from the input to the form that the kernels read instead: two
    # parameters, unscheduled, over blocks. Of a constant it is evaluated at compile time; of
    # another input it is scheduled like an operator of its own and launched before the kernels.
    packing: Mapping[int, tirx.PrimFunc] = field(default_factory=dict)
    # What the artifact is to tell of the kernels; the scheduling stage adds it.
    info: KernelInfo | None = None

    @classmethod
    def one(cls, func: tirx.PrimFunc, group: Group) -> Emission:
        """Wrap one kernel whose parameters are the group's inputs, scalars and outputs."""
        reads = [Slot("input", i) for i in range(len(group.inputs))]
        reads += [Slot("scalar", i) for i in range(len(group.scalars))]
        writes = [Slot("output", i) for i in range(len(group.outputs))]
        return cls((Kernel(func, tuple(reads), tuple(writes)),))


class Template(ABC):
    """One way of making kernels.

    Attributes
    ----------
    name
        Stands in decisions and in the IR.
    is_fallback : bool
        Whether it is taken only where no other template claims.
    """

    name: str
    is_fallback = False

    @abstractmethod
    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Promise to make a group's kernels, or say why not.

        Pure, and quick: it builds no schedule. It is asked once per structure of a group.
        """

    @abstractmethod
    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernels of a claimed group, scheduled for the target."""

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name sets of operators that growth one by one would not find; they are claimed next."""
        return ()

    def kind(self, claim: Claim) -> Hashable:
        """Return the key by which independent groups are batched into one launch."""
        return claim.group.key

    def remark(self, claim: Claim, device: Device) -> Decision | None:
        """Tell what was decided about a claim's kernels; it is asked when they are made.

        The decision needs no producer.
        """
        return None

    def forms(self, claim: Claim, device: Device) -> tuple[Form, ...]:
        """Tell a reader between which forms of kernels the template chose for a claimed group.

        Nothing of a template with a single form.
        """
        return ()

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate the design space of a claimed group, the claim's own configuration first.

        Plain data, all with the same keys, each configuration once, in an order that is the same in
        every process. A template without choices yields nothing.
        """
        return iter(())

    def estimates(self, claim: Claim, device: Device) -> Iterator[tuple[Config, float]]:
        """Estimate the time of configurations of a claimed group by the model of the kernels.

        All in one go, since a design space is enumerated as a whole. A template without a model
        yields nothing; one whose model knows some of its kernels leaves the others out.

        Yields
        ------
        (Config, float)
            A configuration as :meth:`configs` has it, and clocks of a multiprocessor. Only to be
            compared with others of the same claim.
        """
        return iter(())

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claim within its design space, for :meth:`emit`.

        A configuration that is not in the design space, such as one that another version has
        recorded, is refused.
        """
        return Refusal("no_such_config", f"{self.name} has no configurations to choose from.")
