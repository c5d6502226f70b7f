"""The tables of forms of rows on a GPU: the first that rows have is claimed, and all are told."""

import numpy as np
import pytest
from group_kernels import CUDA, group, tensor
from relax_modules import main_module
from tvm import relax

from tests.layout.laid_out import variant_of
from tests.schedule.rows.split_norms import check, drawn, group_norm, parameters, run
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import parse
from tvm_fusion.program.layouts import Layout
from tvm_fusion.schedule.rows.gpu.forms import ROWS, estimate_rows_gpu
from tvm_fusion.schedule.rows.program.read import rows_of
from tvm_fusion.schedule.rows.split.forms import ROWS as TWO_LAUNCHES
from tvm_fusion.schedule.rows.split.template import SplitRows
from tvm_fusion.schedule.rows.template import Rows

OP = relax.op


def softmax(emit, x):
    return OP.nn.softmax(x)


def norm(emit, x, scale, shift):
    return OP.nn.layer_norm(x, scale, shift, -1)


def norm_of(rows, size):
    return [tensor("x", rows, size, dtype="float16")] + [
        tensor(name, size, dtype="float16") for name in ("scale", "shift")
    ], norm


CASES = {
    "extremum, then its index": ([tensor("x", 9, 1000)], lambda emit, x: OP.argmax(x, -1)),
    "a thread a row": ([tensor("x", 8, 5, 4096)], lambda emit, x: OP.sum(x, 1)),
    "lanes along rows": ([tensor("x", 8, 500, 4096)], lambda emit, x: OP.sum(x, 1)),
    "groups of rows": norm_of(63249, 677),
    "in registers": ([tensor("x", 64, 1000, dtype="float16")], softmax),
    "two blocks, read again": ([tensor("x", 512, 50257, dtype="float16")], softmax),
    "a block, read again": ([tensor("x", 3, 50257, dtype="float16")], softmax),
}


@pytest.mark.parametrize("write", [lambda x, s: x * s, lambda x, s: (x + s) * s], ids=["1", "2"])
def test_an_operand_of_whole_rows_weighs_nothing_beside_the_rows(write):
    """It and the sums lie side by side from row to row, but x is read along its rows."""
    params = [tensor("x", 4096, 1024, dtype="float16"), tensor("s", 4096, 1, dtype="float16")]
    members = group(params, lambda emit, x, s: OP.sum(emit(write(x, s)), [1]), CUDA)
    config = estimate_rows_gpu(rows_of(members, on_cpu=False), CUDA.device).config
    assert not config.rows_first
    assert config.threads >= 32


def told(template, claim):
    """The chosen form, and the sentences of the others by their names."""
    forms = template.forms(claim, CUDA.device)
    names = [row.name for row in (*ROWS, *TWO_LAUNCHES)]
    assert [form.name for form in forms] == names
    assert all(bool(form.sentence) != form.is_chosen for form in forms)
    (chosen,) = (form for form in forms if form.is_chosen)
    return chosen, {form.name: form.sentence for form in forms}


@pytest.mark.parametrize("name", CASES)
def test_the_first_form_is_claimed_and_told(name):
    members = group(*CASES[name], CUDA)
    claim = Rows().claim(members, CUDA.device)
    assert isinstance(claim, Claim), claim
    chosen, sentences = told(Rows(), claim)
    assert chosen.name == name
    config = estimate_rows_gpu(rows_of(members, on_cpu=False), CUDA.device).config
    assert claim.details.config == config
    assert chosen.kernel.split(",")[0].endswith(f"of {config.threads} threads")
    before = [row.name for row in ROWS][: list(CASES).index(name)]
    assert all(sentences[other] for other in before)
    assert not any(sentences[other].startswith("The form") for other in before)
    assert sentences["a block, read again"] in ("", f"The form '{name}' takes precedence.")


def test_one_group_of_channels_last_is_read_in_the_order_of_memory():
    """Blocks of channels, as pooling takes them, would be read again in another order."""
    shape = (1, 32, 33, 35)
    *_, found = variant_of(main_module(parameters(shape), group_norm(1)), Layout(0), "cuda:sm_90a")
    claim = Rows().claim(found.group, CUDA.device)
    chosen, _ = told(Rows(), claim)
    assert (chosen.name, claim.work.reread_bytes) == ("in registers", 0)
    x, *vectors = drawn(shape, "float16", 3)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    result = run(claim, [last, *vectors], last.shape, "float16")
    check(result.transpose(0, 3, 1, 2), [x, *vectors], "float16", 1)


def test_what_threads_exchange_lies_in_shared_memory():
    params = [tensor("x", 8, 3000)]
    members = group(params, lambda emit, x: OP.flip(emit(OP.nn.softmax(x)), 1), CUDA)
    claim = Rows().claim(members, CUDA.device)
    chosen, _ = told(Rows(), claim)
    assert claim.shared_bytes == 4 * 3000
    assert chosen.kernel.endswith("12,000 bytes of shared memory")


@pytest.mark.parametrize(("shape", "is_split"), [((1, 32, 512, 512), True), ((1, 32, 8, 8), False)])
def test_two_launches_are_in_the_table(shape, is_split):
    """Both templates tell both tables; the one that was claimed has the chosen form."""
    members = group(parameters(shape), group_norm(4), CUDA)
    template = SplitRows() if is_split else Rows()
    claim = template.claim(members, CUDA.device)
    chosen, sentences = told(template, claim)
    assert (chosen.name in {row.name for row in TWO_LAUNCHES}) == is_split
    if is_split:
        assert f"{claim.details.config.parts} parts of a row" in chosen.kernel
        one = [sentences[row.name] for row in ROWS]
        assert one.count("The planner estimates that its claim takes longer.") == 1
    else:
        assert "too short to split" in sentences["two launches, by rows"]


def test_cpus_have_one_form():
    spec = parse("cpu:x86-64-v3")
    claim = Rows().claim(group([tensor("x", 64, 1000)], softmax, spec), spec.device)
    assert isinstance(claim, Claim), claim
    assert Rows().forms(claim, spec.device) == ()
