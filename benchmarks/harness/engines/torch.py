"""PyTorch, eager and through its compiler, on the modules that the ONNX files came from."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from . import Job, Prepared, Unavailable


def eager(job: Job) -> Prepared:
    """Run the module operator by operator; also what the compiled module is checked against."""
    return _prepare(job, lambda module: module)


def compiled(job: Job) -> Prepared:
    """Return ``torch.compile`` in its default mode: Inductor, C++ for the CPU."""
    return _prepare(job, torch.compile)


def _prepare(job: Job, wrap: Callable[[torch.nn.Module], Callable[..., Any]]) -> Prepared:
    torch.set_num_threads(job.threads)
    torch.set_num_interop_threads(1)
    try:
        from benchmarks.zoo import torch_models
    except ImportError as error:
        raise Unavailable(f"torch modules of the zoo: {error}") from error
    if job.name not in torch_models.NAMES:
        raise Unavailable(f"{job.name} has no torch module")
    model = torch_models.build(job.name, job.seed)
    module = wrap(model.module)
    # The weights differ from the ONNX file's; the inputs need not.
    feeds = {name: torch.from_numpy(job.inputs[name]) for name in model.inputs}

    def run() -> Any:
        with torch.inference_mode():
            return module(**feeds)

    return Prepared(
        run=run,
        outputs=lambda result: {f"{i}": array for i, array in enumerate(_arrays(result))},
        versions={"torch": torch.__version__},
    )


def _arrays(result: Any) -> list[np.ndarray]:
    """Flatten a tensor, a sequence, or the mapping that the libraries' output classes are."""
    if isinstance(result, torch.Tensor):
        return [result.numpy()]
    values = result.values() if isinstance(result, Mapping) else result
    return [array for value in values for array in _arrays(value)]
