"""Profile a function: whole calls in turns with calls that are timed kernel by kernel."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from ....device import cuda_devices, host_cpu
from ....errors import UserError
from ....threads import team_size
from ..arguments import evaluate
from ..tensors import as_array, copy_to, to_numpy, to_tensor
from .calls import Call, Instrument, Run, ungraphed
from .clocks import Clock, CpuClock, CudaEvents
from .ranges import Ranges
from .rates import rates
from .result import KernelTime, Profile, Rates

if TYPE_CHECKING:
    from ..executable import Executable

_Group = Mapping[str, Any]  # of the manifest


def profile(
    executable: Executable, inputs: Mapping[str, Any], function: str, runs: int, warmup: int
) -> Profile:
    """Profile a function; see :meth:`Executable.profile`."""
    if runs < 1 or warmup < 0:
        raise UserError(f"runs={runs}, warmup={warmup}", "at least 1 and 0")
    found = executable.manifest
    kind = found["target"]["kind"]
    on_gpu = kind != "llvm"
    usual = executable.function(function)
    given = _Inputs(inputs, usual.in_place, executable.device)
    groups = found.get("groups", [])
    clock: Clock = CudaEvents() if on_gpu else CpuClock()
    instrument = Instrument(clock, Ranges(_titles(groups)))
    timed = executable.instrumented(function, instrument)

    def whole(called: Any) -> float:
        arguments = given.fresh()
        begin = time.perf_counter()
        called.run(arguments)
        executable.synchronize()
        return (time.perf_counter() - begin) * 1e6

    def run_timed() -> None:
        timed.run(arguments)
        executable.synchronize()

    arguments = given.fresh()
    with ungraphed():  # where the virtual machine is made
        sizes = instrument.sizes(run_timed)
    names = frozenset(name for name, _ in sizes)
    for _ in range(warmup):
        whole(usual)
    one_by_one: list[float] = []
    if isinstance(clock, CudaEvents):
        launched = executable.instrumented(function, None)
        with ungraphed():
            whole(launched)
        one_by_one = [whole(launched) for _ in range(max(3, warmup))]
        clock.last(3 * min(one_by_one))
    ends, timings = [], list[Run]()
    for _ in range(runs):
        ends.append(whole(usual))
        arguments = given.fresh()
        timings.append(instrument.timed(run_timed, names))
    extents = usual.extents(arguments)
    threads = 0 if on_gpu else team_size()
    machine = rates(kind, threads)
    faster = _faster_half(timings, sizes)
    names_of_calls = users_names(
        [name for name, _ in sizes], found["functions"][function].get("launches", [])
    )
    rows = _rows(faster, sizes, names_of_calls, groups, extents, machine)
    end_to_end = statistics.mean(sorted(ends)[: (len(ends) + 1) // 2])
    kernels = sum(row.us for row in rows)
    device = (cuda_devices()[0] if on_gpu else host_cpu()).name
    return Profile(
        found["source"],
        found["target"]["text"],
        device,
        function,
        threads,
        runs,
        extents,
        end_to_end,
        kernels,
        end_to_end - kernels,
        statistics.median(one_by_one) if one_by_one else None,
        clock.name,
        machine,
        rows,
        _notes(found, device, extents),
    )


class _Inputs:
    """Inputs of every call: those that a call writes to are copied anew for each.

    Parameters
    ----------
    inputs : mapping of str to array
        The caller's, which stay as they are.
    in_place : collection of str
        Names of inputs that a call writes to.
    device : tvm_ffi.Device
        Where arrays of the host go first, so that calls are timed without that copy.
    """

    def __init__(
        self, inputs: Mapping[str, Any], in_place: Collection[str], device: tvm_ffi.Device
    ) -> None:
        self._in_place, self._device = in_place, device
        on_gpu = device.type != "cpu"
        self._arrays = {
            name: to_tensor(array, device) if on_gpu and isinstance(array, np.ndarray) else array
            for name, array in inputs.items()
        }

    def fresh(self) -> dict[str, Any]:
        """Return what to call the function with."""
        return {
            name: self._copy(array) if name in self._in_place else array
            for name, array in self._arrays.items()
        }

    def _copy(self, array: Any) -> Any:
        found = as_array(array, "", "an input")
        if isinstance(found, np.ndarray):
            return found.copy()
        return (
            to_numpy(found).copy() if self._device.type == "cpu" else copy_to(found, self._device)
        )


@dataclass
class _Row:
    """Calls of one group, in order: positions among the calls of a run."""

    group: _Group | None
    positions: list[int]


def _rows(
    runs: Sequence[Run],
    sizes: Sequence[tuple[str, int]],
    names: Sequence[tuple[str, ...]],
    groups: Sequence[_Group],
    extents: Mapping[str, int],
    machine: Rates,
) -> tuple[KernelTime, ...]:
    """Join times with what the artifact tells of the kernels."""
    rows = _grouped([name for name, _ in sizes], groups)
    spent = [[sum(run.calls[i].us for i in row.positions) for run in runs] for row in rows]
    whole = sum(map(statistics.mean, spent)) or 1.0
    return tuple(
        _row(row, us, whole, runs[0].calls, sizes, names, extents, machine)
        for row, us in zip(rows, spent, strict=True)
    )


def _faster_half(runs: Sequence[Run], sizes: Sequence[tuple[str, int]]) -> list[Run]:
    """Choose the runs that others disturbed least, the fastest first.

    Raises
    ------
    UserError
        If a run called other kernels than the first one, as a loop that ends by data may.
    """
    names = [name for name, _ in sizes]
    if any([call.name for call in run.calls] != names for run in runs):
        raise UserError("the runs call different kernels", "a function that calls the same in each")
    return sorted(runs, key=lambda run: run.us)[: (len(runs) + 1) // 2]


def _grouped(names: Sequence[str], groups: Sequence[_Group]) -> list[_Row]:
    """Put the calls of a group's kernels together; equal kernels may be of several groups."""
    known: dict[str, list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for part, name in enumerate(group["kernels"]):
            known.setdefault(name, []).append((number, part))
    rows: list[_Row] = []
    expected: list[
        tuple[int, int]
    ] = []  # groups that the present row may be of, and their next part
    for position, name in enumerate(names):
        found = known.get(name, [])
        following = [(number, part) for number, part in found if (number, part) in expected]
        if rows and following:
            rows[-1].positions.append(position)
        else:
            following = [(number, part) for number, part in found if part == 0] or found
            rows.append(_Row(None, [position]))
        rows[-1].group = groups[following[0][0]] if following else None
        expected = [(number, part + 1) for number, part in following]
    return rows


def _row(
    row: _Row,
    spent: Sequence[float],
    whole: float,
    fastest: Sequence[Call],
    sizes: Sequence[tuple[str, int]],
    names: Sequence[tuple[str, ...]],
    extents: Mapping[str, int],
    machine: Rates,
) -> KernelTime:
    group: _Group = row.group or {}
    us = statistics.mean(spent)
    flops = evaluate(group.get("flops", 0), extents) or 0
    given = group.get("bytes")
    size = sum(sizes[i][1] for i in row.positions) if given is None else given
    dtype = group.get("dtype", "float32")
    peak = machine.peak_flops.get(dtype)
    is_priced = bool(group) and given is not None
    seconds = us / 1e6
    return KernelTime(
        kernels=tuple(sizes[i][0] for i in row.positions),
        names=tuple(dict.fromkeys(name for i in row.positions for name in names[i])),
        operators=tuple(group.get("operators", ())),
        template=group.get("template", ""),
        type=group.get("type", ""),
        config=dict(group.get("config", {})),
        us=us,
        least_us=min(spent),
        start_us=fastest[row.positions[0]].start_us,
        spent_us=sum(fastest[i].us for i in row.positions),
        share=us / whole,
        predicted_us=group["us"] if is_priced else None,
        source=group["source"] if is_priced else "",
        record=group["record"] if is_priced else "",
        bytes=size,
        flops=flops,
        dtype=dtype,
        bandwidth_share=size / seconds / machine.bandwidth
        if seconds and machine.bandwidth
        else None,
        peak_share=flops / seconds / peak if seconds and peak else None,
    )


def users_names(
    kernels: Sequence[str], launches: Sequence[Mapping[str, Any]]
) -> list[tuple[str, ...]]:
    """Tell what the user's model calls the members of each call.

    Parameters
    ----------
    kernels : sequence of str
        Names of kernels in the order of calls.
    launches : sequence of mapping
        The manifest's: the body of a loop stands there once, and is called again and again.
    """
    known: dict[str, list[tuple[str, ...]]] = {}
    for launch in launches:
        known.setdefault(launch["kernel"], []).append(tuple(launch["names"]))
    called: Counter[str] = Counter()
    found = []
    for kernel in kernels:
        names = known.get(kernel, [()])
        found.append(names[called[kernel] % len(names)])
        called[kernel] += 1
    return found


def _titles(groups: Sequence[_Group]) -> dict[str, str]:
    """Title kernels by their groups' operators."""
    return {name: " + ".join(g["operators"]) for g in groups for name in g["kernels"]}


def _notes(found: Mapping[str, Any], device: str, extents: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    if "groups" not in found:
        notes.append("The artifact tells nothing of its kernels: compile the model again.")
    priced = found.get("priced_for", {}).get("name", device)
    if priced != device:
        notes.append(f"Expected times are for {priced}.")
    if extents:
        notes.append("Kernels of symbolic shapes have no expected time.")
    return tuple(notes)
