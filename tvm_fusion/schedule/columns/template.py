"""The template of column reductions on GPUs: pooling of channels-last images, all or windows."""

import math
from dataclasses import dataclass

from tvm.target import Target

from ...core.contract.template import Claim, Emission, Refusal, Template
from ...core.tir.loops import constant
from ...device import Device, device_of
from ...ecg.work import at
from ...program.contractions import is_contraction
from ...program.group import Group
from ...program.stage import Stage, Unstructured
from ..gpu.launch import STATIC_SHARED_BYTES
from ..index.estimate import flops, too_many_parameters, traffic
from ..index.inline import inlined, inlined_size
from .config import ColumnConfig, column_blocks, column_config, narrowed, shared_bytes
from .gpu import column_reduction_gpu
from .reduction import LEAST_TERMS, ColumnReduction, column_reduction
from .split import SplitColumns, split_columns
from .window import THREADS as WINDOW_THREADS
from .window import WindowTerm, window_reduction_gpu, window_term


@dataclass(frozen=True, eq=False)
class ColumnDetails:
    """What a claim of many terms remembers until its kernels are made."""

    view: ColumnReduction
    config: ColumnConfig  # of one launch
    split: SplitColumns | None  # of two launches, where terms are split among blocks


@dataclass(frozen=True, eq=False)
class WindowDetails:
    """What a claim of few terms remembers until its kernel is made."""

    view: ColumnReduction
    term: WindowTerm  # what one thread combines


class ColumnReductions(Template):
    """Sums, maxima and minima over everything but contiguous columns."""

    name = "column_reduction"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one reduction of contiguous columns, with maps around it."""
        if device.kind != "cuda":
            return Refusal("not_mine", "Column reductions are for NVIDIA GPUs.")
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = [stage for stage in program.stages if not stage.is_map]
        if len(reductions) != 1 or is_contraction(reductions[0]):
            return Refusal("not_mine", "There is no single reduction, or it is a contraction.")
        (reduction,) = reductions
        extents = [constant(a.extent) for a in reduction.reduce]
        if None in extents:
            return Refusal("symbolic_extent", f"{reduction.title} reduces a symbolic extent.")
        refusal = too_many_parameters(program) or inlined_size(program)
        if refusal is not None:
            return refusal
        stages = inlined(program)
        view = column_reduction(program, stages)
        if isinstance(view, Refusal):
            return view
        if math.prod(n or 0 for n in extents) < LEAST_TERMS:
            return self._window(group, reduction, stages, view)
        if view.is_gathered:
            return Refusal("not_mine", f"{reduction.title} gathers many rows.")
        split = split_columns(view, device)
        view = narrowed(view, device)
        config = column_config(view, device)
        shared = shared_bytes(view, config)
        if shared > STATIC_SHARED_BYTES:
            return Refusal(
                "not_mine", f"Partial results of a block take {shared} bytes of shared memory."
            )
        between = 0 if split is None else split.bytes_between
        return Claim(
            self,
            group,
            launches=1 if split is None else 2,
            bytes=traffic(group, stages) + between,
            flops=flops(stages),
            parallelism=column_blocks(view, config) if split is None else split.blocks(device),
            shared_bytes=shared,
            details=ColumnDetails(view, config, split),
        )

    def _window(
        self, group: Group, reduction: Stage, stages: tuple[Stage, ...], view: ColumnReduction
    ) -> Claim | Refusal:
        """Claim a reduction of few terms, which one thread combines."""
        term = window_term(view)
        if view.elements or term is None:
            return Refusal(
                "not_mine",
                f"{reduction.title} reduces fewer than {LEAST_TERMS} elements to one, and not in"
                " vectors.",
            )
        vectors = math.prod(at(a.extent) for a in view.batch) * (constant(view.k.extent) or 1)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages),
            parallelism=-(-vectors // (view.lanes * WINDOW_THREADS)),
            details=WindowDetails(view, term),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration, or both where terms are split."""
        program, window = claim.group.program, claim.details
        if isinstance(window, WindowDetails):
            func = window_reduction_gpu(program, window.view, window.term)
            return Emission.one(func, claim.group)
        details = claim.details_as(ColumnDetails)
        if details.split is not None:
            return details.split.emission(claim.group, device_of(target))
        func = column_reduction_gpu(program, details.view, details.config)
        return Emission.one(func, claim.group)
