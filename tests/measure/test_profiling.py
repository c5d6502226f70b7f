"""Compiling with a profile: what is measured, counted, kept, told, and right."""

import json
from dataclasses import replace

import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax

import tvm_fusion
from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.comparisons import Comparison, Comparisons, Question
from tvm_fusion.fusion.database.key import Key, device_text, versions
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuning_records import TuningRecords
from tvm_fusion.fusion.profile import ProfiledGroup, Unmeasured
from tvm_fusion.measure import alternatives
from tvm_fusion.measure.alternatives import AlternativeBench
from tvm_fusion.measure.budget import Budget
from tvm_fusion.measure.timing import Effort
from tvm_fusion.report.explain import explain
from tvm_fusion.report.planned import plan_model

pytestmark = pytest.mark.slow_beyond(2)

QUICK = Effort(seconds=0.001, fewest=1, most=2, hopeless=float("inf"), timeout=400.0)
WEIGHT = np.random.default_rng(3).standard_normal((40, 24)).astype("float32") / 6


def attention():
    """Two heads of attention after a projection: proposals that it depends whether to take."""

    def body(emit, x):
        def head(first):
            rows = emit(relax.op.strided_slice(x, [1], [first], [first + 40]))
            return emit(relax.op.matmul(rows, relax.const(WEIGHT)))

        q, k = head(0), head(3)
        scores = emit(relax.op.matmul(q, relax.op.permute_dims(k)))
        return emit(relax.op.matmul(relax.op.nn.softmax(scores), q))

    return main_module([relax.Var("x", relax.TensorType((19, 43), "float32"))], body)


def expected(x):
    q, k = (x[:, i : i + 40].astype("float64") @ WEIGHT for i in (0, 3))
    scores = np.exp(q @ k.T - (q @ k.T).max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True) @ q


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(alternatives, "EFFORT", QUICK)


def run(artifact, tmp_path):
    artifact.export(tmp_path / "a")
    x = np.random.default_rng(5).standard_normal((19, 43)).astype("float32")
    return tvm_fusion.load(tmp_path / "a")(x=x), expected(x)


def first(result):
    return np.asarray(next(iter(result.values())) if isinstance(result, dict) else result)


@pytest.mark.slow
def test_a_profiled_model_is_right_and_profiled_once(tmp_path, quick):
    db = tmp_path / "p.db"
    artifact = tvm_fusion.compile(attention(), db=db, profile="trials=99")
    counts = artifact.manifest["profile"]
    assert counts["measured"] > 0
    assert counts["failed"] == counts["estimated"] == 0
    actual, wanted = run(artifact, tmp_path)
    np.testing.assert_allclose(first(actual), wanted, rtol=2e-5, atol=2e-5)
    again = tvm_fusion.compile(attention(), db=db, profile="trials=99").manifest["profile"]
    assert again == {"measured": 0, "known": counts["measured"], "failed": 0, "estimated": 0}
    # Without leave to measure, the same answers count.
    assert tvm_fusion.compile(attention(), db=db).manifest["profile"] == again
    assert tvm_fusion.compile(attention()).manifest["profile"] is None


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("us", [(1.0, 2.0), (2.0, 1.0)], ids=["fused", "apart"])
def test_whatever_is_measured_the_model_is_right(tmp_path, monkeypatch, us):
    monkeypatch.setattr(AlternativeBench, "__call__", lambda self, asked: (us, 5))
    config = FusionConfig(db=tmp_path / "p.db", profile="5m")
    artifact = tvm_fusion.compile(attention(), "cpu", config)
    actual, wanted = run(artifact, tmp_path)
    np.testing.assert_allclose(first(actual), wanted, rtol=2e-5, atol=2e-5)
    measured = [d for d in artifact.manifest["decisions"] if d["measured_us"]]
    assert bool(measured) == (us[0] > us[1])
    assert all("(measured, record " in d["sentence"] for d in measured)
    plan = plan_model(attention(), "cpu", config)
    assert plan.profile["measured"] == 0
    kernels = sum(c.launches for p in plan.plans.values() for c in p.claims)
    default = plan_model(attention(), "cpu")
    assert kernels >= sum(c.launches for p in default.plans.values() for c in p.claims)


def test_explain_tells_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(AlternativeBench, "__call__", lambda self, asked: ((1.0, 2.0), 5))
    config = FusionConfig(db=tmp_path / "p.db", profile="5m")
    found = explain(attention(), "cpu", config, stock=False)
    assert found.measured
    assert all(d.measured_us == 1.0 for d in found.measured)
    for decision in found.measured:
        assert ": 1.0 us fused, 2.0 us unfused (measured, record " in decision.sentence
        assert decision.sentence in str(found)
    assert type(found).from_json(found.to_json()).measured == found.measured
    assert explain(attention(), "cpu", stock=False).measured == ()


def images():
    """Two convolutions, of which the second could stay in the layout of the graph."""

    def body(emit, x):
        for channels in (32, 32):
            weight = relax.const(np.ones((channels, int(x.ty.shape.values[1]), 3, 3), "float32"))
            x = emit(relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1)))
        return x

    return main_module([relax.Var("x", relax.TensorType((1, 3, 12, 12), "float32"))], body)


@pytest.mark.slow
def test_layouts_are_profiled_once_and_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(AlternativeBench, "__call__", lambda self, asked: ((2.0, 1.0), 5))
    config = FusionConfig(db=tmp_path / "p.db", profile="5m")
    first = tvm_fusion.compile(images(), "cpu", config).manifest["profile"]
    assert first["measured"] > 0
    monkeypatch.setattr(AlternativeBench, "__call__", lambda *_: pytest.fail("measured again"))
    found = explain(images(), "cpu", config, stock=False)
    told = [d for d in found.layouts if d.code == "layout_compared"]
    assert told
    for decision in told:
        assert decision.measured_us == 1.0
        assert "(measured, record " in decision.sentence
        assert decision.sentence in str(found)


def test_records_of_another_device_are_told_of(tmp_path):
    db = tmp_path / "gpu.db"
    key = Key("0123", "[]", "[]", json.dumps(["cuda", "sm_90a", "some", None]), "{}")
    with Records.open(db) as records:
        TuningRecords(records).put_best(key, "matmul", {"mr": 4}, 1.0, 2.0)
    artifact = tvm_fusion.compile(attention(), db=db)
    (told,) = (
        d for d in artifact.manifest["decisions"] if d["code"] == "records_of_another_device"
    )
    assert told["producer"] == "gpu.db"
    assert told["sentence"].startswith("All 1 records of it are for cuda sm_90a, not for cpu:")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cores": 77}, "with 77 cores"),
        ({"name": "Another CPU"}, "of Another CPU"),
        ({"rounds_to_tf32": True}, "with tf32 arithmetic"),
        ({"tvm_fusion": "0.0.1"}, "by tvm_fusion 0.0.1"),
        ({"apache-tvm": "0.1"}, "by apache-tvm 0.1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_comparisons_that_do_not_count_here_are_told_of(tmp_path, change, words):
    db, device = tmp_path / "p.db", tvm_fusion.device.parse("cpu").device
    there = {name: value for name, value in change.items() if hasattr(device, name)}
    packages = {**versions(), **{n: v for n, v in change.items() if n not in there}}
    with Records.open(db) as records:
        answers = Comparisons(records)
        for number in range(3):
            text = device_text(replace(device, **there) if number else device)
            made = json.dumps(packages if number else versions())
            answers.put(Comparison(Question(str(number), text, made, "softmax"), (1.0, 2.0)))
    artifact = tvm_fusion.compile(two_sums(), db=db)
    (told,) = (d for d in artifact.manifest["decisions"] if d["code"] == "comparisons_unused")
    assert told["producer"] == "p.db"
    assert told["sentence"] == (
        f"2 of its 3 comparisons do not count here (2 {words}): measure them anew by --profile, or "
        "remove those of other versions by tune --prune."
    )


def two_sums():
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    return main_module([x], lambda emit, x: emit(relax.op.add(x, x)))


def test_comparisons_of_this_machine_are_no_news(tmp_path):
    db, device = tmp_path / "p.db", tvm_fusion.device.parse("cpu").device
    with Records.open(db) as records:
        question = Question("0", device_text(device), json.dumps(versions()), "softmax")
        Comparisons(records).put(Comparison(question, (1.0, 2.0)))
    decisions = tvm_fusion.compile(two_sums(), db=db).manifest["decisions"]
    assert not [d for d in decisions if d["producer"] == "p.db"]


def parts_of(mod):
    """The groups of a module's plan, as parts."""
    plan = plan_model(mod, "cpu")
    return [
        ProfiledGroup.plain(c.template.name, c.group) for p in plan.plans.values() for c in p.claims
    ]


@pytest.mark.slow
def test_alternatives_are_timed(quick):
    parts = parts_of(attention())
    bench = AlternativeBench(tvm_fusion.device.parse("cpu"), Budget(None, 5))
    us, runs = bench([parts, parts])
    assert runs == alternatives.BATCHES
    assert all(0 < t < np.inf for t in us)


@pytest.mark.parametrize(
    ("times", "counts", "calls"),
    [
        ([[1.0, 2.0]], [1.0, 2.0], 1),
        ([[3.0, 2.0], [2.0, 2.1]], [2.0, 2.1], 2),
        ([[3.0, 2.0], [4.0, 2.0]], [3.0, 2.0], 2),
    ],
)
def test_what_speaks_against_fusing_must_do_so_twice(monkeypatch, times, counts, calls):
    left = list(times)
    monkeypatch.setattr(alternatives, "isolated", lambda measure, seconds: left.pop(0))
    monkeypatch.setattr(alternatives, "modules_of", list)
    us, _ = AlternativeBench(tvm_fusion.device.parse("cpu"), Budget(None, 5))([(), ()])
    assert us == counts
    assert len(times) - len(left) == calls


@pytest.mark.slow
def test_alternatives_that_differ_are_not_timed(quick, monkeypatch):
    parts = parts_of(attention())
    calls = []

    def differs(actual, wanted, least):
        calls.append(1)
        raise ValueError("its results differ")

    monkeypatch.setattr(alternatives, "check_same", differs)
    bench = AlternativeBench(tvm_fusion.device.parse("cpu"), Budget(None, 5))
    with pytest.raises(Unmeasured, match="its results differ"):
        bench([parts, parts])


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("cuda:sm_90a", {"profile": "5m"}, "target 'cuda:sm_90a' cannot be measured here"),
        ("cpu", {"profile": "5m", "db": None}, "there is no file for the measurements"),
        ("cpu", {"profile": "0s"}, "budget '0s' is shorter than one trial"),
        ("cpu", {"profile": "trials=0"}, "budget 'trials=0' allows no trial"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, target, options, words):
    monkeypatch.delenv("TVM_FUSION_RECORDS", raising=False)
    options = {"db": tmp_path / "p.db", **options}
    with pytest.raises(UserError, match=words):
        tvm_fusion.compile(attention(), target, **options)
