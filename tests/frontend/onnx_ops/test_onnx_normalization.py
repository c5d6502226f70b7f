import numpy as np
import pytest

F32 = "float32"


@pytest.mark.parametrize("axis", [-1, 1])
def test_statistics_of_layer_normalization(agrees, rng, axis):
    x = rng.standard_normal((3, 5, 7), dtype=F32) + 3
    inputs = {"x": x, "s": rng.standard_normal(x.shape[axis:] if axis > 0 else 7, dtype=F32)}
    outputs = {"y": F32, "m": F32, "d": F32}
    agrees("LayerNormalization", inputs, outputs, atol=1e-5, axis=axis)


def test_layer_normalization_before_opset_17(agrees, rng):
    x = rng.standard_normal((3, 7), dtype=F32)
    inputs = {"x": x, "s": np.ones(7, F32), "b": np.zeros(7, F32)}
    agrees("LayerNormalization", inputs, {"y": F32}, constants=["s", "b"], opset=14, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 13])
def test_mask_of_dropout(agrees, rng, opset):
    x = rng.standard_normal((3, 5), dtype=F32)
    dtype = F32 if opset < 10 else "bool"
    agrees(
        "Dropout",
        {"x": x},
        {"y": F32, "m": dtype},
        opset=opset,
        expected=[x, np.ones((3, 5), dtype)],
    )


def test_training_is_refused(refuses):
    text = refuses(
        "Dropout", {"x": (F32, [3])}, {"y": (F32, [3])}, {"r": np.float32(0.5), "t": np.array(True)}
    )
    assert "operator Dropout in training mode, which draws random numbers" in text
    assert "export the model for inference" in text


def test_batch_normalization_in_training(agrees, rng):
    x = rng.standard_normal((3, 4, 5), dtype=F32) * 2 + 1
    scale, bias, mean, variance = rng.random((4, 4), dtype=F32) + 0.5
    inputs = {"x": x, "s": scale, "b": bias, "m": mean, "v": variance}
    attrs = {"training_mode": 1, "momentum": 0.8}
    agrees(
        "BatchNormalization", inputs, {"y": F32, "rm": F32, "rv": F32}, opset=15, atol=1e-5, **attrs
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 5, 3, 2), (2, 6, 4)])
def test_local_response_over_windows_of_any_size(agrees, rng, size, shape):
    x = rng.standard_normal(shape, dtype=F32)
    square, total = x.astype("float64") ** 2, np.zeros(shape)
    for c in range(shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(shape[1] - 1, c + -(-(size - 1) // 2))
        total[:, c] = square[:, low : high + 1].sum(1)
    expected = (x / (1.5 + 0.02 / size * total) ** 0.6).astype(F32)
    attrs = {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5}
    agrees("LRN", {"x": x}, {"y": F32}, expected=[expected], **attrs)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(agrees, rng, order, axis):
    x = rng.standard_normal((3, 5, 7), dtype=F32)
    agrees("LpNormalization", {"x": x}, {"y": F32}, axis=axis, p=order)


@pytest.mark.parametrize("order", [1, 2])
def test_lp_normalization_of_zeros(agrees, order):
    x = np.array([[0, 0, 0], [3, -4, 0]], F32)
    expected = np.array([[0, 0, 0], np.array([3, -4, 0]) / (7 if order == 1 else 5)], F32)
    agrees("LpNormalization", {"x": x}, {"y": F32}, expected=[expected], p=order)
