"""Compare the results of packages with this compiler in ONNX Runtime's place.

``pip install --target FOLDER rapidocr_onnxruntime magika silero-vad swift-f0 pillow``, then
``python -m benchmarks.real_models.clients --packages FOLDER``: each runs twice, in processes of its
own, on inputs that are drawn here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RECORD = HERE / "results" / "clients.json"
#: Largest difference of two numbers, over their size or 1.
RTOL = 1e-3


class Session:
    """What the packages use of ``onnxruntime.InferenceSession``; the model runs here.

    What describes it (names, shapes, metadata) is ONNX Runtime's answer.
    """

    def __init__(self, real: Callable[..., Any], model: Any, *args: Any, **options: Any) -> None:
        import onnx

        from tvm_fusion import onnx_backend

        self._described = real(model, *args, **options)
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        self._prepared = onnx_backend.prepare(proto, "CPU")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._described, name)

    def run(
        self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None
    ) -> list[np.ndarray]:
        """Run the model; outputs in the order of the names, or of the model."""
        all_names = [output.name for output in self._described.get_outputs()]
        results = dict(zip(all_names, self._prepared.run(feeds), strict=True))
        return [results[name] for name in names or all_names]


def page_of_text() -> np.ndarray:
    """Draw two lines of dark text on white."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 220), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=40)
    draw.text((30, 30), "Invoice 2041", "black", font)
    draw.text((30, 120), "Total: 318.50 EUR", "black", font)
    return np.asarray(image)


def text() -> Any:
    """Read a page: lines of text with their boxes and scores."""
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(page_of_text())
    return [[np.asarray(box).tolist(), line, float(score)] for box, line, score in found]


def kinds_of_files() -> Any:
    """Tell of some contents what kind of file they are."""
    from magika import Magika

    contents = [
        Path(__file__).read_bytes(),
        b"<html><body><p>Some words</p></body></html>" * 4,
        b'{"a": [1, 2, 3], "b": {"c": null}}\n' * 9,
        b"SELECT name, count(*) FROM t WHERE x > 3 GROUP BY name;\n" * 5,
    ]
    results = [Magika().identify_bytes(content) for content in contents]
    return [[result.output.label, float(result.score)] for result in results]


def speech() -> Any:
    """Tell where in bursts of harmonics there may be speech."""
    from silero_vad import load_silero_vad

    seconds = np.arange(3 * 16000) / 16000
    harmonics = sum(np.sin(2 * np.pi * 140 * k * seconds) / k for k in range(1, 20))
    audio = (0.2 * harmonics * (np.sin(9 * seconds) > 0)).astype("float32")
    model = load_silero_vad(onnx=True, sequence=True)
    return model.audio_forward(audio, 16000).tolist()


def pitch() -> Any:
    """Follow the pitch of a tone that rises from 200 to 400 Hz, with a little noise.

    Without any, most frequencies hold rounding errors alone, of which the model takes logarithms:
    ONNX Runtime is then off by 3e-2 of what float64 gives.
    """
    from swift_f0 import SwiftF0

    seconds = np.arange(2 * 16000) / 16000
    tone = np.sin(2 * np.pi * (200 * seconds + 50 * seconds**2))
    noise = np.random.default_rng(0).standard_normal(len(tone))
    tone = (tone + 0.01 * noise).astype("float32")
    result = SwiftF0().detect(tone, 16000)
    return [np.asarray(result.pitch_hz).tolist(), np.asarray(result.confidence).tolist()]


CLIENTS = {
    "rapidocr-onnxruntime": text,
    "magika": kinds_of_files,
    "silero-vad": speech,
    "swift-f0": pitch,
}


def difference(found: Any, expected: Any) -> float:
    """Return the largest relative difference of numbers; infinite where anything else differs."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return float("inf")
        return max((difference(x, y) for x, y in zip(found, expected, strict=True)), default=0.0)
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return abs(found - expected) / max(abs(expected), 1.0)
    return 0.0 if found == expected else float("inf")


def main() -> int:
    """Run the clients both ways; returns 1 if a result differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_models.clients", description=__doc__
    )
    parser.add_argument("--packages", type=Path, help="a folder of pip install --target")
    parser.add_argument("--only", choices=CLIENTS, help="one of them")
    parser.add_argument("--with", dest="engine", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        return _run(options.only, options.engine)
    path = os.pathsep.join(
        filter(None, [str(options.packages or ""), os.environ.get("PYTHONPATH"), str(Path.cwd())])
    )
    rows = []
    for name in [options.only] if options.only else CLIENTS:
        results = [_of_process(name, engine, path) for engine in ("theirs", "ours")]
        rows.append({"client": name, "difference": difference(results[1], results[0])})
        print(json.dumps({**rows[-1], "result": str(results[0])[:120]}), flush=True)
    if not options.only:
        from benchmarks import records

        RECORD.write_text(records.text({"clients": rows}))
    return int(any(row["difference"] > RTOL for row in rows))


def _run(name: str, engine: str) -> int:
    import onnxruntime

    if engine == "ours":
        real = onnxruntime.InferenceSession
        onnxruntime.InferenceSession = lambda model, *args, **options: Session(
            real, model, *args, **options
        )
    Path(os.environ["RESULT"]).write_text(json.dumps(CLIENTS[name](), default=float))
    return 0


def _of_process(name: str, engine: str, path: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        result = Path(folder) / "result.json"
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--only", name, "--with", engine],
            env={**os.environ, "PYTHONPATH": path, "RESULT": str(result)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{name} with {engine} failed: {done.stderr[-2000:]}")
        return json.loads(result.read_text())


if __name__ == "__main__":
    raise SystemExit(main())
