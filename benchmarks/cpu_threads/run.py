"""Compile models of the zoo side by side, then check and time each with numbers of threads.

``python3 -m benchmarks.cpu_threads.run DIR [--threads 16 1 2 8] [--seconds 540]`` needs the
compiler, ONNX Runtime and, for that peer, OpenVINO; the record goes to ``cpu_threads.json`` in
$OUT, each row when it is measured. What DIR has is not compiled again.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.rows import answered, measured
from tvm_fusion.device import parse

MODELS = (
    "bert_base", "convnext_tiny", "efficientnet_b0", "gpt2", "llama_4l", "mobilenet_v2",
    "segformer_b0", "swin_tiny", "t5_small_enc", "unet2d", "vit_b16", "light_densenet121",
    "light_inception_v1", "light_inception_v2", "light_resnet50", "light_shufflenet",
    "light_squeezenet", "light_vgg19",
)  # fmt: skip
PREPARING = 0.5  # of the time, at most
SECONDS = 60.0  # for one row


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; returns the exit code: 1 if anything is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of files and artifacts")
    parser.add_argument("--only", nargs="*", default=MODELS, help="names")
    parser.add_argument("--threads", type=int, nargs="*", default=(16, 1, 2, 8))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--at-once", type=int, default=4, help="models that are measured at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this run")
    parser.add_argument("--json", type=Path, help="default: cpu_threads.json in $OUT, if set")
    options = parser.parse_args(arguments)
    start, folder = time.monotonic(), options.folder
    end = start + options.seconds
    prepare = partial(
        answered, "benchmarks.cpu_threads.prepare", folder, end=start + PREPARING * options.seconds
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        made = dict(zip(options.only, pool.map(prepare, options.only), strict=True))
    failed = [f"{name}: {told['wrong']}" for name, told in made.items() if told["wrong"]]
    print(f"prepared in {time.monotonic() - start:.0f} s", *failed, sep="\n", flush=True)
    device = {"name": parse("cpu").device.arch, "machine": platform.processor()}
    record: dict[str, Any] = {"about": device | {"failed": failed}, "rows": []}
    path = options.json or Path(os.environ.get("OUT", "."), "cpu_threads.json")
    cases = [(folder, name) for name, told in made.items() if not told["wrong"]]
    for count in options.threads:
        rows = measured(
            "benchmarks.cpu_threads.worker", cases, count, options.at_once, end, SECONDS
        )
        for (_, name), row in rows:
            if "wrong" in row:
                failed.append(f"{name}, {count} threads: {row['wrong']}")
            else:
                record["rows"].append({"name": name, **row})
            print(failed[-1] if "wrong" in row else _text(name, row), flush=True)
            records.write(path, record)
    return int(bool(failed))


def _text(name: str, row: dict[str, Any]) -> str:
    ms = "  ".join(f"{side} {value:8.2f}" for side, value in row["ms"].items())
    return f"{name:20} {row['threads']:2} threads  {ms} ms {row['refused'] or ''}"


if __name__ == "__main__":
    sys.exit(main())
