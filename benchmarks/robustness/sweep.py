"""A process a model, forked from one that has imported all: crashes and hangs are rows."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tvm_fusion.measure.isolate import keep_temporary_files_in

Rows = dict[str, dict[str, Any]]


def sweep(names: Iterable[str], cells: Sequence[str], limit: float) -> Iterator[tuple[str, Rows]]:
    """Run models one after the other.

    Parameters
    ----------
    names
        Of :data:`benchmarks.robustness.catalog.NAMES`.
    cells
        Such as ``cpu:fp32`` and ``stock``, in the order in which they are worked through.
    limit
        Seconds a cell; beyond, it is recorded as hanging.

    Yields
    ------
    str
        The model.
    dict of str to dict
        What became of each cell.
    """
    from .worker import work

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.robustness.worker"])
    for name in names:
        yield name, rows_of(context, work, name, cells, limit)


def rows_of(
    context: Any, work: Callable[..., None], name: str, cells: Sequence[str], limit: float
) -> Rows:
    """Run one model, in further processes where one crashes or hangs.

    Parameters
    ----------
    work
        :func:`benchmarks.robustness.worker.work`.
    name, cells, limit
        See :func:`sweep`.
    """
    rows: Rows = {}
    left = list(cells)
    while left:
        found = _started(context, work, name, left, limit)
        rows |= found
        if found.get("export", {}).get("outcome") != "right":
            break
        left = [cell for cell in left if cell not in found]
    return rows


def _started(
    context: Any, work: Callable[..., None], name: str, cells: Sequence[str], limit: float
) -> Rows:
    """Run cells until the end, or the first one that takes the process down."""
    ours, theirs = context.Pipe(duplex=False)
    folder = tempfile.TemporaryDirectory()
    process = context.Process(target=_work_in, args=(folder.name, work, name, cells, theirs))
    process.start()
    theirs.close()
    rows: Rows = {}
    at = "export"
    try:
        while True:
            if not ours.poll(limit):
                rows[at] = {"outcome": "hang", "reason": f"more than {limit:.0f} s"}
                break
            at, row = ours.recv()
            if row is not None:
                rows[at] = row
    except EOFError:
        process.join()
        if at not in rows:
            reason = f"the process ended with {process.exitcode}"
            rows[at] = {"outcome": "crash", "reason": reason}
    finally:
        process.kill()
        process.join()
        folder.cleanup()
    return rows


def _work_in(folder: str, work: Callable[..., None], *arguments: Any) -> None:
    keep_temporary_files_in(folder)
    work(*arguments)
