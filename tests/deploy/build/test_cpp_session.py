"""Sessions in C++: prefill and decode over caches, and what they refuse."""

import shutil
import subprocess

import cache_models
import numpy as np
import pytest

import tvm_fusion
from tvm_fusion import DimRange

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="no C++ here"),
]

CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(generate LANGUAGES CXX)
find_package(tvm_fusion CONFIG REQUIRED)
add_executable(generate generate.cc)
target_link_libraries(generate PRIVATE tvm_fusion::tvm_fusion)
"""
SOURCE = r"""
#include <tvm_fusion/elements.h>
#include <tvm_fusion/error.h>
#include <tvm_fusion/session.h>

#include <cstdio>
#include <cstdlib>

using tvm_fusion::Session;

void Step(Session& session, const char* function, std::vector<int64_t> ids) {
  int64_t count = static_cast<int64_t>(ids.size());
  tvm::ffi::Tensor tensor = tvm_fusion::EmptyOnHost({1, count}, tvm_fusion::ParseDtype("int64"));
  std::copy(ids.begin(), ids.end(), static_cast<int64_t*>(tensor.data_ptr()));
  try {
    tvm_fusion::NamedTensors outputs = session.Run(function, {{"ids", tensor}});
    float first = *static_cast<const float*>(outputs[0].second.data_ptr());
    std::printf("%zu %lld %.5f\n", outputs.size(), static_cast<long long>(session.length()), first);
  } catch (const tvm_fusion::UserError& error) {
    std::printf("%s\n", error.what());
  }
}

int main(int, char** argv) {
  tvm_fusion::Model model(argv[1]);
  Session session(model), other(model);
  Step(session, "prefill", {1, 2, 3});
  Step(other, "decode", {4});
  Step(session, "decode", {4});
  Step(session, "decode", {11});
  Step(session, "prefill", {5, 6, 7, 8});
  Step(session, "prefill", {5, 6});
  session.Reset();
  Step(session, "decode", {4});
  std::fflush(stdout);
  std::_Exit(0);
}
"""


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def test_a_session_is_that_of_python(runner, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (tmp_path / "generate.cc").write_text(SOURCE)
    build = tmp_path / "build"
    made = run("cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={runner.parent}")
    assert made.returncode == 0, made.stderr
    made = run("cmake", "--build", build)
    assert made.returncode == 0, made.stderr
    artifact = tvm_fusion.compile(
        cache_models.models(),
        in_place=cache_models.IN_PLACE,
        dims={"tokens": DimRange(2, 4)},
        rewrite="none",
    )
    folder = artifact.export(tmp_path / "artifact")
    said = run(build / "generate", folder)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()

    executable = tvm_fusion.load(folder)
    session, other = executable.session(), executable.session()
    wanted = [
        (session.prefill, [1, 2, 3], 3),
        (other.decode, [4], 1),
        (session.decode, [4], 4),
        "input 'ids' holds 11; expected numbers from 0 to 10.",
        (session.prefill, [5, 6, 7, 8], 8),
        "2 tokens from position 8; expected at most 1, as there are 9 positions.",
        (executable.session().decode, [4], 1),
    ]
    for line, want in zip(lines, wanted, strict=True):
        if isinstance(want, str):
            assert line == want
            continue
        function, ids, length = want
        first = function(np.array([ids]))["output_0"].flat[0]
        count, found, value = line.split()
        assert (int(count), int(found)) == (1, length)
        assert float(value) == pytest.approx(first, rel=1e-4, abs=1e-4)
