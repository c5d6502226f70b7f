"""One model, all peers: a process each, the reference first, then check, then time."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvm_fusion.errors import UserError

from . import arrays, measure
from .client import Client, EngineError
from .engines import ENGINES, ONNX_REFERENCE, REFERENCES, TOLERANCES

#: Called with each line that tells how far a measurement is.
Progress = Callable[[str], None]


def measure_model(
    name: str,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    peers: Mapping[str, str],
    *,
    settings: measure.Settings,
    threads: int,
    seed: int,
    timeout: float,
    folder: Path,
    progress: Progress = lambda line: None,
    references: Mapping[str, str] = REFERENCES,
    default_reference: str = ONNX_REFERENCE,
) -> dict[str, Any]:
    """Measure one model with every peer; a peer that fails never stops the others.

    Parameters
    ----------
    name, model, inputs
        The model; weights inside the ``ModelProto``, one array per graph input.
    peers
        Peer name -> ``module:function``, in the order of the table.
    settings
        How much is measured.
    threads, seed, timeout
        Threads of every engine; seed of the torch modules; seconds that one step may take.
    folder
        Scratch folder; the model is written there once for all.
    progress
        Gets one line per step.
    references, default_reference
        Engine that says what is right, for a peer and for the peers not named.

    Returns
    -------
    dict
        ``name``, ``inputs``, ``peers`` (results by :mod:`~benchmarks.harness.measure`), ``ratios``.
    """
    job = _write_job(name, model, inputs, threads, seed, folder)

    def client(engine: str, label: str) -> Client:
        return Client(engine, threads, folder / label, timeout)

    expected: dict[str, dict[str, np.ndarray] | EngineError] = {}
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        engines: dict[str, measure.Engine] = {}
        for peer, engine in peers.items():
            judge = references.get(peer, default_reference)
            if judge not in expected:
                expected[judge] = _reference(client(judge, f"reference-{len(expected)}"), job)
            right = expected[judge]
            if isinstance(right, EngineError):
                reason = f"reference: {right}" if right.kind == "failed" else str(right)
                results[peer] = {"status": right.kind, "reason": reason}
            else:
                worker = client(engine, peer)
                stack.callback(worker.close)
                allowed = TOLERANCES.get(peer, settings.tolerance)
                results[peer] = measure.check(
                    worker, job, right, replace(settings, tolerance=allowed)
                )
                engines[peer] = worker
                if results[peer]["status"] != "right":
                    worker.close()
            results[peer]["reference"] = judge
            progress(f"{name}: {peer}: {results[peer]['status']} {results[peer]['reason'] or ''}")
        measure.time_interleaved(engines, results, settings)
    for peer, result in results.items():
        if "latency_ms" in result:
            progress(f"{name}: {peer}: {result['latency_ms']['median']:.2f} ms")
    return {
        "name": name,
        "inputs": {k: {"shape": list(a.shape), "dtype": str(a.dtype)} for k, a in inputs.items()},
        "peers": results,
        "ratios": measure.ratios(results),
    }


def _write_job(
    name: str,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    threads: int,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    path = folder / "model.onnx"
    # Weights aside: a protobuf file ends at 2 GB.
    onnx.save_model(model, str(path), save_as_external_data=True, location="model.weights")
    arrays.save(folder / "inputs.npz", inputs)
    return {
        "name": name,
        "model": str(path),
        "inputs": str(folder / "inputs.npz"),
        "threads": threads,
        "seed": seed,
    }


def _reference(worker: Client, job: Mapping[str, Any]) -> dict[str, np.ndarray] | EngineError:
    try:
        worker.prepare(job)
        return worker.outputs()[0]
    except EngineError as error:
        return error
    finally:
        worker.close()


def choose(names: list[str]) -> dict[str, str]:
    """Return the named engines, in that order.

    Raises
    ------
    UserError
        When a name is none of :data:`~benchmarks.harness.engines.ENGINES`.
    """
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise UserError(f"unknown peers {', '.join(unknown)}", f"some of {', '.join(ENGINES)}")
    return {name: ENGINES[name] for name in names}
