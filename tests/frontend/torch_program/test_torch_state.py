"""What a program changes in place is passed in, and comes out changed."""

import numpy as np
import pytest

from tvm_fusion.core.decisions import recording
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
functional = torch.nn.functional


class Cache(torch.nn.Module):
    """Attention over a cache of 20 keys and values that the call adds to."""

    def __init__(self, is_persistent):
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 2, 20, 8), persistent=is_persistent)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, query, key, value, positions):
        self.keys.index_copy_(2, positions, key * self.scale)
        self.values[:, :, positions] = value
        mask = torch.arange(20) <= positions[-1]
        return functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask[None, None, None]
        )


def draw(count):
    return [torch.randn(1, 2, n, 8) for n in (1, count, count)]


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_cache_goes_in_and_comes_out(run, count, is_persistent):
    module = Cache(is_persistent)
    program = torch.export.export(module, (*draw(count), torch.arange(count)))
    with recording() as log:
        imported = import_model(program)
    assert [d.consumer for d in log if d.code == "state_returned"] == ["keys", "values"]
    signature = imported.signatures["main"]
    assert [s.name for s in signature.inputs[-2:]] == ["keys", "values"]
    assert [s.name for s in signature.outputs] == ["output_0", "keys", "values"]
    state = [module.keys.numpy().copy(), module.values.numpy().copy()]
    for start in (0, count):
        arguments = [*draw(count), torch.arange(start, start + count)]
        result, *state = run(imported.mod, *(a.numpy() for a in arguments), *state)
        np.testing.assert_allclose(result, module(*arguments).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state[0], module.keys.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(state[1], module.values.numpy())


def test_an_input_that_is_written_to(run):
    class Sum(torch.nn.Module):
        def forward(self, x, total):
            total.add_(x)
            return {"twice": total * 2}

    x, total = torch.randn(3), torch.randn(3)
    imported = import_model(torch.export.export(Sum(), (x, total)))
    signature = imported.signatures["main"]
    assert [s.name for s in signature.inputs] == ["x", "total"]
    assert [s.name for s in signature.outputs] == ["twice", "total"]
    twice, new = run(imported.mod, x.numpy(), total.numpy())
    np.testing.assert_allclose(new, (x + total).numpy(), rtol=1e-6)
    np.testing.assert_allclose(twice, 2 * new, rtol=1e-6)


def test_a_buffer_whose_name_is_taken_keeps_the_exporters():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("x", torch.zeros(3))

        def forward(self, x):
            self.x.add_(x)
            return self.x * 2

    imported = import_model(torch.export.export(Sum(), (torch.randn(3),)))
    signature = imported.signatures["main"]
    assert [s.name for s in signature.inputs] == ["x", "b_x"]
    assert [s.name for s in signature.outputs] == ["output_0", "b_x"]
