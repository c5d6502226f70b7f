"""ONNX Runtime on the CPU: a peer with all its optimizations, the reference with none."""

import onnxruntime as ort

from . import Job, Prepared


def optimized(job: Job) -> Prepared:
    """Return the peer: every graph optimization, ``job.threads`` threads inside an operator."""
    return _session(job, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def unoptimized(job: Job) -> Prepared:
    """Return the reference: each operator as the file spells it, so that no fusion is trusted."""
    return _session(job, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)


def _session(job: Job, level: ort.GraphOptimizationLevel) -> Prepared:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(job.model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = dict(job.inputs)
    return Prepared(
        run=lambda: session.run(None, feeds),
        outputs=lambda result: dict(zip(names, result, strict=True)),
        versions={"onnxruntime": ort.__version__},
    )
