"""Records survive what passes and files do to a PrimFunc."""

import copy

import pytest
import tvm
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.ecg.record import OpRecord, describe, record_of, stamp

X = relax.Var("x", relax.TensorType((2, 8, 9, 11), "float32"))
W = relax.Var("w", relax.TensorType((4, 8, 3, 3), "float32"))


@tvm.script.tirx.prim_func(private=True, s_tir=True)
def custom(x: tvm.script.tirx.Buffer((7,), "float32"), y: tvm.script.tirx.Buffer((7,), "float32")):
    for i in range(7):
        with tvm.script.tirx.sblock("copy"):
            v = tvm.script.tirx.axis.spatial(7, i)
            y[v] = x[v]


def test_custom_functions_have_none():
    assert record_of(custom) is None


@pytest.mark.parametrize(
    ("call", "attrs"),
    [
        (relax.op.exp(X), {}),
        (relax.op.nn.softmax(X, 1), {"axis": 1}),
        (relax.op.sum(X, [1, -1], keepdims=True), {"axis": (1, -1), "keepdims": True}),
        (relax.op.sum(X), {"axis": None, "keepdims": False}),
        (relax.op.nn.leakyrelu(X, float("inf")), {"alpha": float("inf")}),
        (relax.op.astype(X, "float16"), {"dtype": "float16"}),
        (
            relax.op.layout_transform(X, lambda n, c, h, w: (n, h, w, c)),
            {"index_map": "(n, c, h, w) -> (n, h, w, c)", "pad_value": None},
        ),
    ],
)
def test_attributes_are_plain_values(call, attrs):
    record = describe(call)
    assert record == OpRecord(str(call.op.name), attrs)
    assert record_of(stamp(custom, record)) == record
    assert hash(record_of(stamp(custom, record))) == hash(record)


def test_convolution():
    record = describe(relax.op.nn.conv2d(X, W, (2, 1), (1, 0)))
    assert record.attrs["strides"] == (2, 1)
    assert record.attrs["padding"] == (1, 0, 1, 0)
    assert record.attrs["data_layout"] == "NCHW"


def test_survives_copies_files_and_passes():
    with parse("cpu").tvm_target():
        mod = transform.Legalize()(main_module([X], relax.op.nn.softmax(X, 1)))
        expected = OpRecord("relax.nn.softmax", {"axis": 1})
        passes = [relax.transform.DeadCodeElimination(), relax.transform.ToNonDataflow()]
        for other in [
            mod,
            copy.deepcopy(mod),
            tvm.ir.load_json(tvm.ir.save_json(mod)),
            tvm.script.from_source(mod.script(show_meta=True)),
            tvm.ir.transform.Sequential(passes)(mod),
        ]:
            assert record_of(other["softmax"]) == expected
