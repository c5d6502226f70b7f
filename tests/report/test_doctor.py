import dataclasses
import json
import subprocess
import sys

import pytest

from tvm_fusion.deploy.toolchain import host, nvcc, nvrtc, rocm, rocm_math
from tvm_fusion.errors import UserError
from tvm_fusion.report import doctor

TOPICS = [
    *("python", "tvm", "tvm-ffi", "c compiler", "run on cpu", "run on cuda", "run on rocm"),
    *("compile for cuda", "cuda runtime", "compile for rocm", "rocm device library", "cmake"),
    *("onnxruntime", "torch", "xgboost"),
]


def _finding(topic):
    return next(finding for finding in doctor.examine() if finding.topic == topic)


def test_every_topic_once_in_order_and_ready_for_json():
    findings = doctor.examine()
    assert [finding.topic for finding in findings] == TOPICS
    read = json.loads(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    assert read[0]["ok"] is True
    assert all(finding.found and "\n" not in finding.found for finding in findings)
    assert all(finding.advice is None for finding in findings if finding.ok)


def test_looking_maps_no_compiler():
    program = (
        "import sys; from tvm_fusion.report.doctor import examine; examine(); "
        "assert 'tvm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_this_machine_runs_on_its_cpu():
    found = _finding("run on cpu").found
    assert "threads" in found


def test_a_missing_c_compiler_comes_with_the_apt_line(monkeypatch):
    def missing(triple=None):
        raise UserError("a C compiler was not found")

    monkeypatch.setattr(host, "require_compiler", missing)
    finding = _finding("c compiler")
    assert not finding.ok
    assert finding.advice == "apt-get install -y g++"


def test_missing_cuda_tools_come_with_the_extra(monkeypatch):
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    monkeypatch.setattr(nvrtc, "nvrtc_lacks", lambda: ["nvidia-nvfatbin"])
    finding = _finding("compile for cuda")
    assert not finding.ok
    assert "nvidia-nvfatbin" in finding.found
    assert finding.advice == 'pip install "tvm_fusion[cuda]"'


def test_nvrtc_alone_is_enough_for_cuda(monkeypatch):
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    monkeypatch.setattr(nvrtc, "nvrtc_lacks", lambda: [])
    finding = _finding("compile for cuda")
    assert finding.ok
    assert finding.found.startswith("nvrtc: sm_75")


@pytest.mark.parametrize(
    ("module", "function", "nothing", "topic", "advice"),
    [
        (rocm, "find_lld", None, "compile for rocm", rocm.INSTALL_LLD),
        (rocm_math, "find_ocml", (), "rocm device library", rocm_math.INSTALL_OCML),
    ],
)
def test_missing_rocm_tools_come_with_the_apt_line(
    monkeypatch, module, function, nothing, topic, advice
):
    monkeypatch.setattr(module, function, lambda *_: nothing)
    finding = _finding(topic)
    assert not finding.ok
    assert finding.advice == advice


def test_a_missing_optional_package_comes_with_its_extra(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    finding = _finding("xgboost")
    assert not finding.ok
    assert finding.advice == 'pip install "tvm_fusion[tune]"'


def test_what_is_missing_comes_with_the_smallest_install(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    advice = {f.topic: f.advice for f in doctor.examine()}
    assert advice["onnxruntime"] == 'pip install "tvm_fusion[onnx]"'
    assert advice["torch"] == 'pip install "tvm_fusion[torch]"'
    assert advice["cmake"] == "apt-get install -y cmake"
