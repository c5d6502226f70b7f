"""Integers on an interpreted AMD GPU: as numpy's they wrap around, and no divisor ends it."""

import numpy as np
import pytest
from integer_expressions import TYPES, Drawn
from rocm_models import load

from tvm_fusion.deploy.runtime.tensors import to_numpy
from tvm_fusion.deploy.toolchain import rocm

pytestmark = [
    pytest.mark.rocm_toolchain,
    pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found"),
]


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_drawn_expressions_agree_with_numpy(gpu, tmp_path, arch):
    drawn = Drawn(np.random.default_rng(), 33)
    names = []
    with np.errstate(all="ignore"):
        while len(names) < 2 * len(TYPES):
            name = drawn.expression(TYPES[len(names) % len(TYPES)], 2)
            if name not in drawn.inputs and name not in names:
                names.append(name)
    model = drawn.model(names)
    executable = load(model, arch, gpu, tmp_path / "a")
    got = executable.run({i.name: drawn.inputs[i.name] for i in model.graph.input})
    for name in names:
        np.testing.assert_array_equal(to_numpy(got[name]), drawn.values[name], name)
