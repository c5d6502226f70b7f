"""Fuzz the import of ONNX files: ``python -m tests.fuzz.files --minutes 60 --finds FOLDER``."""

import argparse
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from .mutate import damaged, mutated
from .seeds import seeds
from .server import Server
from .subjects import compile_model

SEEDS = 200  # that are run unchanged, for their coverage
BYTES, COMPILED = 0.1, 0.05  # shares of cases: damaged as bytes; compiled, not only imported


def main() -> int:
    """Mutate models; those that reach new lines are mutated further; 1 if anything is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.files", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--finds", type=Path, required=True, help="folder for failing files")
    options = parser.parse_args()
    options.finds.mkdir(parents=True, exist_ok=True)
    generator = random.Random(options.seed)

    import tvm_fusion.frontend.onnx  # noqa: F401  (once, and not in every worker)
    from tvm_fusion.errors import UserError

    server = Server(compile_model, UserError, "tvm_fusion/frontend")
    corpus = seeds()
    start, cases, outcomes = time.monotonic(), 0, Counter[str]()
    end, logged = start + 60 * options.minutes, 0.0
    fresh = generator.sample(corpus, min(SEEDS, len(corpus)))  # each once as it is
    while time.monotonic() < end:
        model = fresh.pop() if fresh else None
        if model is None:
            model = mutated(generator.choice(corpus), corpus, generator)
        data = model.SerializeToString()
        if not fresh and generator.random() < BYTES:
            data = damaged(data, generator)
        compiled = generator.random() < COMPILED
        verdict = server.judge(bytes([compiled]) + data)
        cases += 1
        outcomes[verdict.outcome] += 1
        if verdict.covered and not fresh and len(data) < 50_000:
            with suppress(DecodeError):  # bytes that are no message are not mutated further
                corpus.append(onnx.ModelProto.FromString(data))
        if verdict.is_finding and outcomes[verdict.outcome] <= 3:
            name = "".join(c if c.isalnum() else "_" for c in verdict.outcome)
            place = options.finds / f"{name}_{outcomes[verdict.outcome]}"
            place.with_suffix(".onnx").write_bytes(data)
            place.with_suffix(".txt").write_text(f"compiled: {compiled}\n{verdict.detail}")
            print(f"{verdict.outcome}: {place}.onnx", flush=True)
        if time.monotonic() > logged + 60:
            logged = time.monotonic()
            print(f"{cases} cases, {len(corpus)} models, {len(server.known)} lines", flush=True)
    server.close()
    print(f"{cases} cases in {time.monotonic() - start:.0f} s, {len(server.known)} lines;")
    for outcome, count in outcomes.most_common():
        print(f"{count:8} {outcome}")
    return int(any(outcome not in ("passed", "refused") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
