"""OpenVINO on the CPU."""

from __future__ import annotations

import openvino as ov

from . import Job, Prepared


def openvino(job: Job) -> Prepared:
    """Return the peer: one stream, float32 arithmetic, ``job.threads`` threads.

    Without the precision hint OpenVINO computes in bfloat16 where the CPU can; the others don't.
    """
    core = ov.Core()
    settings = {
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
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
