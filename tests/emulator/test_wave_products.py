"""AMD's matrix instructions in the emulator refuse what a wave would get wrong."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulator.memory import EmulationError
from emulator.wave_products import Shape, held

WMMA = Shape("wmma", 16, 16, 16)


def test_halves_of_a_wave_hold_copies():
    rows = np.random.default_rng().standard_normal((16, 16)).astype("float16")
    both, machine = np.concatenate([rows, rows]), SimpleNamespace(threads=32)
    (found,) = held(WMMA, both, machine, rows.dtype, True)
    np.testing.assert_array_equal(found, rows)
    both[21, 3] += 1
    with pytest.raises(EmulationError, match="halves of a wave hold different operands"):
        held(WMMA, both, machine, rows.dtype, True)
