"""Rare operators of PyTorch: listed with all others, their modules imported on first use."""

import json
import subprocess
import sys
import textwrap
from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tvm_fusion.frontend import import_model  # noqa: E402
from tvm_fusion.frontend.torch_ops import CONVERTERS, complex_pairs, rare  # noqa: E402
from tvm_fusion.frontend.torch_ops.registry import with_overload  # noqa: E402

pytestmark = pytest.mark.torch

TABLES = {
    "real": (rare.REAL, rare.REAL_CONVERTERS, {k: c.convert for k, c in CONVERTERS.items()}),
    "complex": (rare.COMPLEX, rare.COMPLEX_CONVERTERS, complex_pairs.CONVERTERS),
}


def module_name(module):
    return f"{rare.__name__}.{module}"


@pytest.mark.parametrize("kind", TABLES)
def test_each_module_has_the_operators_that_are_listed(kind):
    listed, converters, _ = TABLES[kind]
    for module in listed:
        import_module(module_name(module))
    expected = {with_overload(n): module_name(m) for m, given in listed.items() for n in given}
    assert {key: c.convert.__module__ for key, c in converters.items()} == expected


@pytest.mark.parametrize("kind", TABLES)
def test_each_operator_is_known_and_reaches_its_converter(kind, monkeypatch):
    listed, converters, known = TABLES[kind]
    for module in listed:
        import_module(module_name(module))
    for key in [with_overload(name) for given in listed.values() for name in given]:
        converter = type(converters[key])(lambda call, key=key: (key, call))
        monkeypatch.setitem(converters, key, converter)
        assert known[key]("call") == (key, "call")


PROGRAM = """
    import json, sys
    import torch
    from tvm_fusion.frontend import import_model

    class Everyday(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)
            self.norm = torch.nn.LayerNorm(8)
            self.dense = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = self.norm(torch.relu(self.conv(x)).mean((2, 3)))
            return torch.softmax(torch.nn.functional.gelu(self.dense(x)), -1)

    class Rare(torch.nn.Module):
        def forward(self, x):
            return %s

    def imported():
        return sorted(m.split(".rare.")[1] for m in sys.modules if ".torch_ops.rare." in m)

    def added(module, *shape):
        import_model(torch.export.export(module.eval(), (torch.randn(shape),)))
        return imported()

    print(json.dumps([added(Everyday(), 1, 3, 9, 9), added(Rare(), 4, 4)]))
"""
EXAMPLES = {
    "linalg": ("torch.linalg.det(x)", {"linalg.factorizations"}),
    "special": ("torch.special.erfcx(x)", {"special.error_functions"}),
    "fourier": ("torch.fft.rfft(x).real", {"fourier", "complex_numbers"}),
    "complex": ("(torch.view_as_complex(x.reshape(8, 2)) * 2j).abs()", {"complex_numbers"}),
}
EAGER = {"registry"}


@pytest.mark.parametrize("family", EXAMPLES)
def test_a_program_imports_only_the_modules_of_its_operators(family):
    expression, needed = EXAMPLES[family]
    program = textwrap.dedent(PROGRAM) % expression
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600
    )
    everyday, then = map(set, json.loads(ran.stdout.splitlines()[-1]))
    assert everyday == EAGER
    assert needed <= then
    families = {module.partition(".")[0] for module in then - EAGER}
    assert families == {module.partition(".")[0] for module in needed}


def test_a_program_of_all_families_has_the_numbers_of_torch(run, rng):
    class Mixed(torch.nn.Module):
        def forward(self, x):
            spectrum = torch.fft.fft(x)
            return torch.linalg.det(x), torch.special.erfcx(x), (spectrum * spectrum).abs()

    x = torch.from_numpy(rng.standard_normal((5, 5)))
    found = run(import_model(torch.export.export(Mixed(), (x,))).mod, x.numpy())
    for result, expected in zip(found, Mixed()(x), strict=True):
        np.testing.assert_allclose(result, expected.numpy(), 1e-10)
