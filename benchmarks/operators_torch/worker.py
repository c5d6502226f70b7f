"""Runs cases one after the other; a line of JSON before and after each sample."""

import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from typing import Any

import numpy as np
import torch

import tvm_fusion
from benchmarks.broken_claims import broken_claims
from benchmarks.runtime_alone import RuntimeAlone
from tvm_fusion._tvm.ffi_speed import speed_up_ffi

from .compare import difference
from .samples import Sample, samples, together


def main() -> None:
    """Read ``operator dtype most first`` from the standard input, line by line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What TVM and LLVM print is no answer.
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    speed_up_ffi()
    for line in sys.stdin:
        name, dtype, most, first = line.split()
        try:
            drawn = samples(name, dtype, int(most))
        except Exception as error:  # guard: the database's own sampler; reported as such
            print(json.dumps({"end": 0, "no_samples": _first_line(error)}), file=answers)
            continue
        if int(first) < 0 and len(drawn) > 1:
            print(json.dumps({"start": -1}), file=answers)
            if judge(together(drawn))[0] == "right":
                for number in range(len(drawn)):
                    print(json.dumps({"number": number, "outcome": "right"}), file=answers)
                print(json.dumps({"end": len(drawn)}), file=answers)
                continue
        for number, sample in enumerate(drawn):
            if number >= int(first):
                print(json.dumps({"start": number}), file=answers)
                outcome, reason = judge(sample)
                record = {"number": number, "outcome": outcome, "reason": reason}
                print(json.dumps(record), file=answers)
        print(json.dumps({"end": len(drawn)}), file=answers)


def judge(sample: Sample) -> tuple[str, str]:
    """Export, compile, run and compare one sample.

    Returns
    -------
    tuple of str
        The outcome (``no program``, ``refused``, ``crash``, ``wrong`` or ``right``), its reason.
    """
    try:
        expected = sample.program(*(x.clone() for x in sample.inputs))
        program = torch.export.export(sample.program, sample.inputs)
    except Exception as error:  # guard: torch's own failures are no finding of ours; reported
        return "no program", _first_line(error)
    try:
        got = run(program, sample.inputs)
    except tvm_fusion.UserError as error:
        return "refused", str(error)
    except Exception as error:  # guard: what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return "crash", f"{type(error).__name__} at {where}: {_first_line(error)}"
    # Behind its results a compiled program returns what it writes to.
    reason = difference(sample, expected, got[: len(expected)])
    return ("wrong", reason) if reason else ("right", "")


_ALONE = RuntimeAlone()


def run(program: Any, inputs: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    """Compile a program for this machine and call it in a process without the compiler."""
    artifact = tvm_fusion.compile(program, "cpu")
    if broken := broken_claims(artifact.manifest["decisions"]):
        raise RuntimeError(broken[0])
    with tempfile.TemporaryDirectory() as folder:
        artifact.export(f"{folder}/a")
        names = program.graph_signature.user_inputs
        given = {n: _plain(x).numpy() for n, x in zip(names, inputs, strict=True)}
        taken = [spec["name"] for spec in artifact.manifest["functions"]["main"]["inputs"]]
        found = _ALONE.run(f"{folder}/a", {name: given[name] for name in taken})
        return list(found.values())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as a compiled program takes it, with a last axis of two."""
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()[:300]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
