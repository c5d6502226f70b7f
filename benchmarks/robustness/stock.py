"""The same programs through TVM's own importer and default pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from tvm_fusion.device import parse


def compiled(
    program: torch.export.ExportedProgram, inputs: tuple[torch.Tensor, ...]
) -> Callable[[], list[Any]]:
    """Compile for this machine; returns a function that calls it with the inputs."""
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=False)
    target = tvm.target.Target({"kind": "llvm", **dict(*parse("cpu").attrs), "num-cores": 1})
    with target:
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_default_pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.tensor(x.numpy()) for x in inputs]

    def call() -> list[Any]:
        results = machine["main"](*given)
        results = [results] if hasattr(results, "numpy") else list(results)
        return [x.numpy() for x in results]

    return call
