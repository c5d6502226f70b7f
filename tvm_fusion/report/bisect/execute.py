"""Variants built in memory and run on this machine."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..._tvm.versions import PIPELINE
from ...core.decisions import recording
from ...core.tir.whole_extents import with_numbers_of_steps
from ...deploy.runtime import arguments
from ...deploy.runtime.results import leaves
from ...deploy.runtime.tensors import to_numpy, to_tensor
from ...deploy.toolchain import toolchain
from ...device import TargetSpec
from ...errors import UserError
from ..planned import PlannedModel, Plans

_DEVICES = {"llvm": "cpu", "cuda": "cuda", "rocm": "rocm"}


def check_runnable(spec: TargetSpec) -> None:
    """Stop where this machine cannot run what is compiled for a target.

    Raises
    ------
    UserError
        For a target that is not here.
    """
    if spec.kind == "llvm" and spec.triple is None:
        return
    # Artifacts for AMD GPUs bring a runtime along, which does not run what is built in memory.
    runs = tvm.get_global_func(f"ffi.Module.create.{spec.kind}", allow_missing=True) is not None
    if runs and tvm.device(_DEVICES[spec.kind], 0).exist:
        return
    raise UserError(
        f"target {spec.text!r} cannot be run on this machine",
        "a target that is here, since bisect runs what it compiles",
        "use cpu, or a machine that has the device",
    )


def check_inputs(planned: PlannedModel, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Check inputs against the model's signature.

    Returns
    -------
    dict of str to int
        Extents of the symbolic dimensions.

    Raises
    ------
    UserError
        For wrong names, shapes and dtypes.
    """
    signature = planned.imported.signatures[planned.main]
    arrays = arguments.order(signature.inputs, inputs)
    shapes, dtypes = [tuple(a.shape) for a in arrays], [str(a.dtype) for a in arrays]
    extents = arguments.check(
        signature.inputs, shapes, dtypes, planned.imported.dims, equal=signature.equal
    )
    return with_numbers_of_steps(planned.imported.mod[planned.main], extents)


def build(planned: PlannedModel, plans: Plans) -> relax.VirtualMachine:
    """Compile a variant for this machine.

    Raises
    ------
    RuntimeError
        If a template broke its claim: a compilation would plan again, and hide what is looked for.
    """
    with recording() as decisions:
        try:
            scheduled = planned.scheduled(plans)
        finally:  # a broken claim is the reason of whatever came of planning without it
            broken = [d for d in decisions if d.code == "claim_broken"]
            if broken:
                raise RuntimeError(f"{broken[0].producer}: {broken[0].sentence}")
    with toolchain(planned.spec), planned.spec.tvm_target() as target:
        lowered = planned.lowered(scheduled)
        executable = tvm.compile(lowered, target, relax_pipeline=None, tir_pipeline=PIPELINE)
    return relax.VirtualMachine(executable, device_of(planned))


def device_of(planned: PlannedModel) -> Any:
    """Return the device that variants run on."""
    return tvm.device(_DEVICES[planned.spec.kind], 0)


def tensors(planned: PlannedModel, inputs: Mapping[str, np.ndarray]) -> list[Any]:
    """Bring inputs into call order and onto the device."""
    signature = planned.imported.signatures[planned.main]
    device = device_of(planned)
    return [to_tensor(array, device) for array in arguments.order(signature.inputs, inputs)]


def outputs_of(
    planned: PlannedModel, plans: Plans, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Compile and run a variant.

    Returns
    -------
    dict of str to numpy.ndarray
        By output name.
    """
    machine = build(planned, plans)
    result = machine[planned.main](*tensors(planned, inputs))
    names = [spec.name for spec in planned.imported.signatures[planned.main].outputs]
    return {name: to_numpy(leaf) for name, leaf in zip(names, leaves(result), strict=True)}


def median_us(machine: relax.VirtualMachine, function: str, args: list[Any], device: Any) -> float:
    """Time a function: median of seven runs of at least 20 ms each, in microseconds."""
    timer = machine.time_evaluator(function, device, number=1, repeat=7, min_repeat_ms=20)
    return float(np.median(timer(*args).results)) * 1e6
