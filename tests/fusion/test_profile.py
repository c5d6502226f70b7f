"""The planner's profile database, with benches that answer as they are told."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from relax_modules import main_module
from toy_templates import Anchored, graph_of
from tvm import relax, tirx

from tvm_fusion.core.decisions import recording
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.claims import ClaimBook
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.database.comparisons import Comparison, Comparisons, Question
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.planning.plan import plan
from tvm_fusion.fusion.profile import NotNow, Profile, Unmeasured, profiling

SPEC = parse("cpu:x86-64-v4")  # what costs less depends on the CPU


def titles(plan_):
    return [group.title for group in plan_.groups]


class FakeBench:
    """Returns the same times for every question, or raises."""

    def __init__(self, *us, raises=None):
        self.us, self.raises, self.asked = us, raises, []

    def __call__(self, alternatives):
        self.asked.append([[part.group.title for part in parts] for parts in alternatives])
        if self.raises:
            raise self.raises
        return self.us, 5


def transposed(rows=6):
    """``softmax`` feeding a transposition: Many-to-Many and Shuffle, a yellow cell."""
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    return main_module([x], relax.op.permute_dims(relax.op.nn.softmax(x)))


@contextmanager
def book_with(profile):
    template = Anchored()
    book = ClaimBook((template,), SPEC.device, CostModel(SPEC.device))
    with profiling(profile), book.asking_profile():
        yield book


def planned(profile, mod=None):
    with book_with(profile) as book:
        return plan(graph_of(mod or transposed()), (Anchored(),), book)


@pytest.fixture
def records(tmp_path):
    with Records.open(tmp_path / "p.db") as opened:
        yield opened


@pytest.mark.parametrize(
    ("fused", "apart", "groups", "verdict"),
    [
        (12.0, 15.0, ["softmax + permute_dims"], "accepted"),
        (15.0, 15.2, ["softmax + permute_dims"], "accepted"),
        (15.2, 15.0, ["softmax + permute_dims"], "accepted"),  # closer than what times are off by
        (16.0, 15.0, ["softmax", "permute_dims"], "refused"),
    ],
)
def test_measurements_decide_yellow_cells(records, fused, apart, groups, verdict):
    bench = FakeBench(fused, apart)
    found = planned(Profile(records, bench))
    assert titles(found) == groups
    assert bench.asked == [[["softmax + permute_dims"], ["softmax", "permute_dims"]]]
    (decision,) = found.decisions
    assert (decision.verdict, decision.measured_us) == (verdict, fused)
    wording = {
        "accepted": f"One kernel by anchored: {fused:.1f} us fused, {apart:.1f} us unfused",
        "refused": f"Fused they would take {fused:.1f} us, unfused {apart:.1f} us",
    }
    assert decision.sentence == f"{wording[verdict]} (measured, record 1 of p.db)."


def test_a_second_plan_measures_nothing(records):
    bench = FakeBench(16.0, 15.0)
    first = Profile(records, bench)
    assert titles(planned(first)) == ["softmax", "permute_dims"]
    assert first.counts() == {"measured": 1, "known": 0, "failed": 0, "estimated": 0}
    for mod in (transposed(), transposed(6)):
        again = Profile(records, bench)
        assert titles(planned(again, mod)) == ["softmax", "permute_dims"]
        assert again.counts() == {"measured": 0, "known": 1, "failed": 0, "estimated": 0}
    assert len(bench.asked) == 1
    other = Profile(records, bench)
    planned(other, transposed(7))
    assert (other.measured, len(bench.asked)) == (1, 2)


def test_answers_are_used_where_nothing_is_measured(records):
    planned(Profile(records, FakeBench(16.0, 15.0)))
    profile = Profile(records)
    assert titles(planned(profile)) == ["softmax", "permute_dims"]
    assert profile.known == 1
    other = planned(profile, transposed(9))
    assert titles(other) == ["softmax + permute_dims"]
    assert profile.estimated == 1
    assert "(roofline)" in other.decisions[0].sentence
    assert other.decisions[0].measured_us is None


class Partial(FakeBench):
    """Knows no alternatives of some number of operators."""

    unknown = 2

    def __call__(self, alternatives):
        if len(alternatives[0][0].group.members) == self.unknown:
            raise NotNow
        return super().__call__(alternatives)


@pytest.mark.parametrize("unknown", [2, 0])
def test_what_is_measured_in_part_is_ranked_by_the_model(records, unknown):
    """Measured savings are not comparable with the model's, which may be larger by its error."""
    x = relax.Var("x", relax.TensorType((600, 800), "float32"))

    def body(emit, x):
        for _ in range(3):
            x = emit(relax.op.nn.softmax(x))
        return x

    graph = graph_of(main_module([x], body))
    a, b, c = (op.name for op in graph.operators)
    template = Anchored(3, ((b, c), (a, b, c)))
    bench = Partial(1.0, 1.2)  # the model has savings of some ten microseconds
    bench.unknown = unknown
    book = ClaimBook((template,), SPEC.device, CostModel(SPEC.device))
    with profiling(Profile(records, bench)), book.asking_profile():
        assert titles(plan(graph, (template,), book)) == ["softmax + softmax + softmax"]


class Wasteful(Anchored):
    """What is fused takes more by the model."""

    def claim(self, group, device):
        found = super().claim(group, device)
        return replace(found, bytes=3 * found.bytes) if len(group.members) > 1 else found


@pytest.mark.parametrize(
    ("us", "groups", "source"),
    [
        ((15.0, 15.2), 2, "roofline"),
        ((15.2, 15.0), 2, "roofline"),
        ((14.0, 15.0), 1, "measured"),
        ((16.0, 15.0), 2, "measured"),
    ],
)
def test_the_model_decides_ties(records, us, groups, source):
    template = Wasteful()
    book = ClaimBook((template,), SPEC.device, CostModel(SPEC.device))
    with profiling(Profile(records, FakeBench(*us))), book.asking_profile():
        found = plan(graph_of(transposed(1 << 18)), (template,), book)
    assert len(found.groups) == groups
    assert f"({source}" in found.decisions[0].sentence


class Another(Anchored):
    """The same groups by other kernels, which the model has so many times as slow."""

    name = "another"

    def __init__(self, times):
        super().__init__()
        self.times = times

    def claim(self, group, device):
        found = super().claim(group, device)
        return replace(found, bytes=round(self.times * found.bytes))


@pytest.mark.parametrize(
    ("times", "us", "template", "questions"),
    [
        (1.5, (9.0, 4.0), "another", 1),
        (1.5, (9.0, 8.9), "anchored", 1),  # closer than what times are off by
        (1.5, (4.0, 9.0), "anchored", 1),
        (400.0, (9.0, 4.0), "anchored", 0),
    ],
)
def test_measurements_decide_between_templates(records, times, us, template, questions):
    """Such as one kernel for long rows, or two that split them."""
    x = relax.Var("x", relax.TensorType((1 << 10, 1 << 12), "float32"))
    mod = main_module([x], lambda emit, x: emit(relax.op.nn.softmax(x)))
    bench = FakeBench(*us)
    templates = Anchored(), Another(times)
    for rounds in range(2):  # the second knows
        book = ClaimBook(templates, SPEC.device, CostModel(SPEC.device))
        profile = Profile(records, bench)
        with profiling(profile), book.asking_profile(), recording() as decisions:
            (claim,) = plan(graph_of(mod), templates, book).claims
        assert claim.template.name == template
        assert len(bench.asked) == questions
        assert profile.known == (questions if rounds else 0)
        told = [d.sentence for d in decisions if d.code == "template_measured"]
        sentence = "Kernels by another: 4.0 us, by anchored 9.0 us (measured, record 1 of p.db)."
        assert told == ([sentence] if template == "another" else [])


def test_what_fails_is_estimated_and_not_tried_again(records):
    bench = FakeBench(raises=Unmeasured("ended by SIGSEGV"))
    for count in (1, 1):
        profile = Profile(records, bench)
        assert titles(planned(profile)) == ["softmax + permute_dims"]
        assert profile.counts() == {"measured": 0, "known": 0, "failed": 1, "estimated": 0}
        assert len(bench.asked) == count
    (kept,) = Comparisons(records).everything()
    assert (kept.us, kept.error) == ((), "ended by SIGSEGV")


def test_what_the_budget_does_not_reach_is_asked_another_time(records):
    profile = Profile(records, FakeBench(raises=NotNow()))
    assert titles(planned(profile)) == ["softmax + permute_dims"]
    assert profile.counts() == {"measured": 0, "known": 0, "failed": 0, "estimated": 1}
    assert Comparisons(records).everything() == []


def test_symbolic_shapes_are_estimated(records):
    bench = FakeBench(16.0, 15.0)
    found = planned(Profile(records, bench), transposed(tirx.Var("n", "int64")))
    assert titles(found) == ["softmax + permute_dims"]
    assert bench.asked == []


def test_only_planning_asks(records):
    """The search of the rewriting stage plans many regions that come to nothing."""
    bench = FakeBench(16.0, 15.0)
    book = ClaimBook((Anchored(),), SPEC.device, CostModel(SPEC.device))
    with profiling(Profile(records, bench)):
        plan(graph_of(transposed()), (Anchored(),), book)
    assert bench.asked == []


def test_read_only_records_are_not_measured_into(records, monkeypatch):
    monkeypatch.setattr(records, "is_writable", False)
    assert Profile(records).counts()["known"] == 0
    with pytest.raises(UserError, match="are read-only; expected a writable file"):
        Profile(records, FakeBench(1.0, 2.0))


def test_questions_are_of_one_device_and_versions(records):
    device, versions = json.dumps(["llvm", "some"]), json.dumps({"tvm_fusion": "1"})
    answers = Comparisons(records)
    question = Question("0123", device, versions, "softmax")
    answers.put(Comparison(question, (1.0, 2.0)))
    assert answers.put(Comparison(question, (3.0, 2.0))).number == 1  # replaced
    assert answers.get(question).us == (3.0, 2.0)
    assert answers.get(Question("0123", "[]", versions, "softmax")) is None
    assert answers.get(Question("0123", device, "{}", "softmax")) is None
    with pytest.raises(ValueError, match="not durations"):
        answers.put(Comparison(question, (float("nan"), 1.0)))
