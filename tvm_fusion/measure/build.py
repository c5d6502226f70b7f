"""Build modules of planned groups for measuring: what cannot be emitted as planned is an error."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.transform import Sequential

from .._tvm.versions import PIPELINE
from ..core.contract.tuned import Lookup, untuned
from ..core.decisions import recording
from ..deploy.build.lower import LowerToVM
from ..deploy.toolchain import tile_permission, toolchain
from ..device import TargetSpec
from ..device.tile_permission import need_tiles
from ..fusion.fuse import FuseOperators
from ..schedule.kernels import ScheduleKernels


def build_groups(
    mod: tvm.IRModule,
    spec: TargetSpec,
    tuned: Lookup = untuned,
    change: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod,
) -> Any:
    """Build a module of groups.

    Parameters
    ----------
    mod
        Groups, and functions that call them.
    tuned
        Gives the configuration of a group's kernels; their default by default.
    change
        Changes the scheduled module before it is lowered.

    Raises
    ------
    RuntimeError
        If a group cannot be emitted with its configuration.
    """
    with toolchain(spec), spec.tvm_target() as target, recording() as decisions:
        scheduled = Sequential([ScheduleKernels(FuseOperators, tuned)])(mod)
        for decision in decisions:
            if decision.verdict == "fallback":
                raise RuntimeError(decision.sentence)
        lowered = Sequential([LowerToVM()])(change(scheduled))
        return tvm.compile(lowered, target, relax_pipeline=None, tir_pipeline=PIPELINE)


def export(executable: Any, spec: TargetSpec, path: Path) -> None:
    """Link what :func:`build_groups` has built into a library, which TVM's own loader opens."""
    with toolchain(spec) as tools, tempfile.TemporaryDirectory() as folder:
        addons = []
        if need_tiles(spec.device.features):
            addons.append(str(Path(folder, "tile_permission.o")))
            Path(addons[0]).write_bytes(tile_permission(spec.triple))
        executable.export_library(str(path), fcompile=tools.link, addons=addons)
