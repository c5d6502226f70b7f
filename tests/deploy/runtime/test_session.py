"""Sessions: prefill and decode over caches that stay in place, and what they refuse."""

import cache_models
import numpy as np
import pytest
from cache_models import IN_PLACE, MOST, PLACES, VOCABULARY, WIDTH

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.errors import UserError


@pytest.fixture(scope="module")
def executable(tmp_path_factory):
    dims = {"tokens": DimRange(2, MOST)}
    artifact = tvm_fusion.compile(
        cache_models.models(), in_place=IN_PLACE, dims=dims, rewrite="none"
    )
    return tvm_fusion.load(artifact.export(tmp_path_factory.mktemp("two") / "artifact"))


def draw(count):
    return np.random.default_rng().integers(0, VOCABULARY, (1, count))


def fresh():
    return np.zeros((PLACES, WIDTH), "float32"), np.zeros(WIDTH, "float32")


def test_weights_of_both_functions_are_stored_once(executable):
    functions = executable.manifest["functions"]
    assert list(functions) == ["prefill", "decode"]
    assert functions["prefill"]["weights"] == functions["decode"]["weights"]
    for entry in functions.values():
        assert entry["in_place"] == IN_PLACE
        assert entry["limits"]["ids"] == {"below": VOCABULARY, "count": 1}
    assert functions["prefill"]["limits"]["position"] == {"below": PLACES, "count": "tokens"}
    assert functions["decode"]["limits"]["position"] == {"below": PLACES, "count": 1}


@pytest.mark.parametrize("counts", [(4, 1, 1), (2, 3), (7, 1), (1, 5), (PLACES,)])
def test_calls_write_the_caches_where_they_lie(executable, counts):
    session, (cache, total) = executable.session(), fresh()
    places = {name: array.ctypes.data for name, array in session.caches.items()}
    for count in counts:
        ids, start = draw(count), session.length
        for size in (MOST,) * (count // MOST) + ((count % MOST,) if count % MOST else ()):
            part = ids[:, session.length - start :][:, :size]
            want = cache_models.reference(part, session.length, cache, total)
            session.length += size
        session.length = start
        result = (session.decode if count == 1 else session.prefill)(ids)
        assert list(result) == ["output_0"]
        assert session.length == start + count
        np.testing.assert_allclose(result["output_0"], want, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(session.caches["cache"], cache)
    np.testing.assert_allclose(session.caches["total"], total, rtol=1e-5, atol=1e-6)
    assert {name: array.ctypes.data for name, array in session.caches.items()} == places


def test_sessions_do_not_see_each_other(executable):
    sessions, states = [executable.session() for _ in range(2)], [fresh() for _ in range(2)]
    for _ in range(3):
        for session, (cache, total) in zip(sessions, states, strict=True):
            ids = draw(1)
            want = cache_models.reference(ids, session.length, cache, total)
            np.testing.assert_allclose(session.decode(ids)["output_0"], want, rtol=1e-4, atol=1e-4)


def test_a_session_starts_anew_and_goes_back(executable):
    session = executable.session()
    first = session.prefill(ids=draw(3))
    again = draw(1)
    one = session.decode(again)["output_0"]
    total = session.caches["total"].copy()
    session.decode(again, position=3)
    assert session.length == 4
    assert not np.array_equal(session.caches["total"], total)
    session.reset()
    assert session.length == 0
    assert not any(cache.any() for cache in session.caches.values())
    assert first["output_0"].shape == one.shape == (1, WIDTH)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.prefill(draw(8)), "8 tokens from position 2; expected at most 7"),
        (lambda s: s.decode([[VOCABULARY]]), "input 'ids' holds 11; expected numbers from 0 to 10"),
        (lambda s: s.prefill([[3, -1]]), "input 'ids' holds -1; expected numbers from 0 to 10"),
        (lambda s: s.decode(draw(1), position=9), "1 token from position 9; expected at most 0"),
        (lambda s: s.decode(draw(1), position=-1), "input 'position' is -1; expected a number"),
        (lambda s: s.decode(draw(1), position="end"), "input 'position' is 'end'; expected"),
        (lambda s: s.decode(), "missing input 'ids'"),
        (lambda s: s.decode(draw(1), draw(1)), "2 inputs in order; expected the inputs 'ids'"),
        (lambda s: s.decode(draw(1), ids=draw(1)), "input 'ids' is given twice"),
        (lambda s: s.decode(draw(1), cache=0), "unknown input 'cache'"),
        (lambda s: s.decode(draw(0)), r"input 'ids' has shape \(1, 0\); expected \(1, 1\)"),
        (lambda s: s.decode(3), r"input 'ids' has shape \(\); expected \(1, 1\)"),
        (
            lambda s: s.run("generate"),
            "no function 'generate'; expected one of 'prefill', 'decode'",
        ),
    ],
)
def test_what_is_refused_changes_nothing(executable, call, message):
    session = executable.session()
    session.prefill(draw(2))
    before = {name: array.copy() for name, array in session.caches.items()}
    with pytest.raises(UserError, match=message):
        call(session)
    assert session.length == 2
    for name, array in session.caches.items():
        np.testing.assert_array_equal(array, before[name])


def test_an_unknown_method_is_no_function(executable):
    with pytest.raises(AttributeError, match="no attribute or function 'generate'"):
        _ = executable.session().generate
    assert {"prefill", "decode", "reset"} <= {*dir(executable.session())}


def test_an_artifact_without_caches_has_no_sessions():
    executable = tvm_fusion.load(tvm_fusion.compile(cache_models.step(1), rewrite="none"))
    with pytest.raises(UserError, match="functions write to no inputs; expected caches"):
        executable.session()


def test_tokens_that_no_function_takes():
    models = {"prefill": cache_models.step(3)}
    artifact = tvm_fusion.compile(models, in_place=IN_PLACE, rewrite="none")
    session = tvm_fusion.load(artifact).session()
    session.prefill(draw(6))
    with pytest.raises(UserError, match="2 tokens for 'prefill'; expected 3 to 3 in each call"):
        session.prefill(draw(2))
