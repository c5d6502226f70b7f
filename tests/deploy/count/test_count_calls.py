"""The count's PrimFunc calls against those that the virtual machine makes on the CPU."""

import counted_graphs as graphs
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_fusion.deploy.count import count

CPU = tvm.target.Target("llvm")


def executed(lowered: tvm.IRModule, function: str, dims: dict[str, int]) -> list[str]:
    """Names of the device PrimFuncs that one inference calls, in order."""
    calls: list[str] = []
    device_functions = {
        gvar.name_hint
        for gvar, func in lowered.functions.items()
        if isinstance(func, tirx.PrimFunc) and not func.attrs.get("tirx.is_host_func", False)
    }

    def instrument(func: object, name: str, before_run: bool, result: object, *args: object) -> int:
        if before_run and name in device_functions:
            calls.append(name)
        return 0

    machine = relax.VirtualMachine(tvm.compile(lowered, CPU, relax_pipeline=None), tvm.cpu())
    machine.set_instrument(instrument)
    machine[function](*(zeros(param.ty, dims) for param in lowered[function].params))
    return calls


def zeros(ty: relax.TensorType, dims: dict[str, int]) -> tvm.runtime.Tensor:
    shape = [dims[e.name] if hasattr(e, "name") else int(e) for e in ty.shape.values]
    array = tvm.runtime.empty(shape, str(ty.dtype))
    array.copyfrom(np.zeros_like(array.numpy()))
    return array


@pytest.mark.parametrize(
    ("name", "function"),
    [(name, f) for name, entry in graphs.GRAPHS.items() for f in entry.functions],
)
@pytest.mark.slow
def test_calls_are_those_of_the_virtual_machine(name: str, function: str) -> None:
    entry = graphs.GRAPHS[name]
    lowered = graphs.stock(entry, CPU)
    counted = count(lowered, CPU, function=function, dims=entry.dims)
    names = executed(lowered, function, entry.dims)
    assert counted.calls == len(names)
    if name != "branches":  # there the count takes the longer branch, here the two are equal
        assert {launch.primfunc for launch in counted.launches} == set(names)
    assert not counted.caveats
