"""Engines of the harness that compile with what tuning has left in their folder."""

from benchmarks.harness.engines import Job, Prepared
from benchmarks.harness.engines.tvm import host_target, ours, stock

from .metaschedule import application
from .steps import RECORDS


def tuned(job: Job) -> Prepared:
    """Compile with this project and the records of a run of its tuner."""
    return ours(job, job.folder / RECORDS)


def metaschedule(job: Job) -> Prepared:
    """Compile with stock TVM and the database of a run of MetaSchedule."""
    target = host_target(job.threads)
    return stock(job, target, application(job.folder, target), is_counted=False)
