"""OpenVINO on the CPU, in float32 and in the precision that it chooses by itself."""

from typing import Any

import openvino as ov

from . import Job, Prepared


def openvino(job: Job) -> Prepared:
    """Return the peer: one stream, float32 arithmetic, ``job.threads`` threads."""
    return _prepared(job, {"INFERENCE_PRECISION_HINT": "f32"})


def default_precision(job: Job) -> Prepared:
    """Return what users get without asking: bfloat16 where the CPU has instructions for it."""
    return _prepared(job, {})


def _prepared(job: Job, hints: dict[str, Any]) -> Prepared:
    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": job.threads, "NUM_STREAMS": 1, **hints}
    model = core.read_model(str(job.model))
    # The file may leave dimensions open; the other engines compile for these inputs' shapes too.
    model.reshape({name: array.shape for name, array in job.inputs.items()})
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    feeds = dict(job.inputs)

    def outputs(result):
        return {port.any_name: array.copy() for port, array in result.items()}

    return Prepared(
        run=lambda: request.infer(feeds, share_inputs=True, share_outputs=True),
        outputs=outputs,
        versions={"openvino": ov.__version__},
    )
