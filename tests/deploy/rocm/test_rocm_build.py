"""The runtime of AMD GPUs, as it is compiled into libraries."""

import re
import subprocess
from pathlib import Path

import pytest
import tvm
from amd_code import amd_module, reverse_twice

import tvm_fusion
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.deploy.toolchain import rocm_code, rocm_runtime
from tvm_fusion.errors import UserError


def test_tvm_lacks_headers_that_its_own_need():
    # When this fails, deploy/rocm/support can go.
    include = Path(tvm.__file__).with_name("include")
    assert not (include / "tvm" / "support").exists()


def test_a_compiler_that_cannot_is_told(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'g++: fatal error: cannot execute cc1plus' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(UserError, match=r"cannot compile the runtime of AMD GPUs \(g\+\+: fatal e"):
        rocm_runtime._object_file(str(compiler))


def test_a_library_needs_no_rocm_and_stays_open(chain_folder):
    path = chain_folder / manifest.LIBRARY
    dynamic = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    assert not re.search("NEEDED.*(hip|hsa|rocm)", dynamic.stdout)
    assert re.search("FLAGS_1.*NODELETE", dynamic.stdout)


def test_a_library_exports_what_tvm_calls_alone(chain_folder):
    path = chain_folder / manifest.LIBRARY
    symbols = subprocess.run(
        ["nm", "-DC", "--defined-only", path], capture_output=True, text=True, check=True
    )
    assert "tvm_fusion::rocm" not in symbols.stdout


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_code_is_the_same_where_an_artifact_was_loaded(hip, chain_folder, arch):
    """TVM's code generator asks a device that is there how many threads a block may have."""
    tvm_fusion.load(chain_folder)
    assert tvm.device("rocm", 0).exist
    assembly = amd_module({"reverse_twice": reverse_twice}, arch).inspect_source("asm")
    assert [kernel.threads for kernel in rocm_code.kernels(assembly)] == [256]
