"""Several models as functions of one module."""

import cache_models
import numpy as np
import onnx
import pytest
import tiny_models
from tvm import relax

from tvm_fusion import DimRange
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.constants.weight_names import constants
from tvm_fusion.errors import UserError
from tvm_fusion.frontend.functions import import_models


def imported(models, **dims):
    return import_models(models, FusionConfig(dims=dims))


def test_equal_constants_are_one_object():
    found = imported(cache_models.models(), tokens=DimRange(2, 4))
    assert list(found.signatures) == ["prefill", "decode"]
    assert found.dims == {"tokens": DimRange(2, 4)}
    arrays = [c.value.numpy() for c in constants(found.mod)]
    tables = [a for a in arrays if a.shape == cache_models.TABLE.shape]
    assert len(tables) == 1
    np.testing.assert_array_equal(tables[0], cache_models.TABLE)
    relax.analysis.well_formed(found.mod)


def test_models_of_several_kinds():
    models = {"scores": tiny_models.dense(), "decode": cache_models.step(1)}
    found = imported(models, batch=3)
    assert [s.name for s in found.signatures["scores"].inputs] == ["data"]
    assert found.signatures["decode"].inputs[0].name == "ids"
    assert {"weight", "bias"} <= {*found.weight_names.values()}
    assert found.source == "scores: ModelProto, decode: IRModule"


def test_private_functions_of_one_name_stay_apart():
    names = {gvar.name_hint for gvar in imported(cache_models.models(), tokens=2).mod.functions}
    assert {"prefill", "decode"} <= names


@pytest.mark.parametrize(
    ("models", "dims", "message"),
    [
        ({}, {}, "no models; expected at least one"),
        ({"to decode": cache_models.step(1)}, {}, "a function called 'to decode'"),
        ({3: cache_models.step(1)}, {}, "a function called 3; expected a name"),
        ({"decode": cache_models.step(1)}, {"n": 3}, "--dim n names no dimension of any model"),
        ({"decode": onnx.ModelProto()}, {}, "empty graph"),
        ({"decode": 3}, {}, "a model of type int"),
    ],
)
def test_what_is_refused(models, dims, message):
    with pytest.raises(UserError, match=message):
        imported(models, **dims)


def test_a_model_of_several_functions_is_refused():
    module = cache_models.step(1)
    module["other"] = module["main"].with_attr("global_symbol", "other")
    with pytest.raises(UserError, match="model 'a' has the functions main, other; expected one"):
        imported({"a": module})


def test_constants_are_refused():
    config = FusionConfig(constants={"axes": 1})
    with pytest.raises(UserError, match="constants for several models"):
        import_models({"decode": cache_models.step(1)}, config)
