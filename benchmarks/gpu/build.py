"""Compile all workloads ahead of time, where there is no GPU."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from .catalog import works
from .decoder import DecodeStep
from .once import INDEX


def build(
    folder: Path,
    target: str,
    seed: int,
    count: int,
    only: Sequence[str],
    processes: int = 2,
) -> list[str]:
    """Compile and export workloads into a folder.

    Parameters
    ----------
    folder
        Gets one artifact each, and an index.
    target
        As of :func:`tvm_fusion.device.parse`.
    seed, count
        Of the random workloads.
    only
        Parts of names; empty: all.
    processes
        That compile side by side.

    Returns
    -------
    list of str
        What could not be compiled, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        i
        for i, work in enumerate(works(seed, count))
        if not only or any(part in work.name for part in only)
    ]
    processes = min(processes, os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_compile, folder, target, seed, count, i) for i in chosen]
        results = [job.result() for job in jobs]
    names = [works(seed, count)[i].name for i in chosen]
    failed = {n: reason for n, reason in zip(names, results, strict=True) if reason}
    index = {"target": target, "seed": seed, "count": count, "names": names, "failed": failed}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return [f"{name}: {reason}" for name, reason in failed.items()]


def _compile(folder: Path, target: str, seed: int, count: int, number: int) -> str | None:
    import tvm_fusion

    work = works(seed, count)[number]
    exported = work.exported()
    names = list(exported.graph_signature.user_inputs)
    static, in_place = ([str(names[i]) for i in found] for found in (work.static, work.in_place))
    try:
        artifact = tvm_fusion.compile(
            exported,
            target=target,
            static_inputs=static,
            in_place=in_place,
            allow=work.allow,
            cuda_graph=isinstance(work, DecodeStep),  # calls of others are captured as a whole
        )
        artifact.export(folder / work.name)
    # guard: one work that is not compiled is a row of the table
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    return None
