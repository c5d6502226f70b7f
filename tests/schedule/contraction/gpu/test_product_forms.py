"""The table of forms of a product on a GPU: one is chosen, and the others say why not."""

import pytest
from group_kernels import CUDA, group, tensor
from tvm import relax

from tests.schedule.contraction.conv_graphs import laid_out, with_residual
from tests.schedule.contraction.gemm_graphs import product, with_epilogue
from tests.schedule.contraction.ragged_graphs import experts
from tests.schedule.contraction.wgmma.test_dual_gemm import gated
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import parse
from tvm_fusion.schedule.contraction.gpu import forms as forms_gpu
from tvm_fusion.schedule.contraction.gpu.forms import BY_RANK, BY_TIME, choose, weighed
from tvm_fusion.schedule.contraction.gpu.product import Product, Reading, read_product
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.index.inline import inlined

op = relax.op
NAMES = [row.name for row in (*BY_RANK, *BY_TIME)]


def convolved(shape, weight, is_laid_out=True, is_known=True, **options):
    """A convolution, of channels-last images or of the graph's."""
    params, body = with_residual(shape, weight, options)[:2]
    if not is_known:
        params = [tensor("x", *shape, dtype="float16"), tensor("w", *weight, dtype="float16")]

        def body(emit, x, w):
            return op.nn.conv2d(x, w, padding=1, out_dtype="float32")

    return laid_out(params, body) if is_laid_out else group(params, body, CUDA)


CASES = {
    "as it is": lambda: group(*with_epilogue(512, 256, 512)[:2], CUDA),
    "aligned rows": lambda: group(*product(77, 7207, 4210)[:2], CUDA),
    "implicit GEMM": lambda: convolved((1, 64, 28, 28), (64, 64, 3, 3)),
    "grouped convolution": lambda: convolved((1, 64, 28, 28), (64, 16, 3, 3), groups=4),
    "partial im2col": lambda: convolved((8, 3, 64, 64), (64, 3, 3, 3), is_laid_out=False),
    "planes": lambda: convolved((1, 32, 28, 28), (32, 32, 3, 3), is_laid_out=False),
    "packed weight": lambda: convolved((1, 64, 28, 28), (64, 64, 3, 3), is_known=False),
    "ragged rows": lambda: group(*experts(256, 8, 64, 128), CUDA),
    "dual GEMM": lambda: group(*gated(512, 256, 1024)[:2], CUDA),
}


def read(members) -> Product:
    found = read_product(members, inlined(members.program), CUDA.device)
    assert isinstance(found, Product)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_chosen_form_is_claimed_and_told(name):
    members = CASES[name]()
    chosen = choose(read(members))
    assert chosen.name == name
    claim = GpuContraction().claim(members, CUDA.device)
    assert type(claim.details.copies) is type(chosen.form.copies)
    forms = GpuContraction().forms(claim, CUDA.device)
    assert [form.name for form in forms] == NAMES
    assert [form.name for form in forms if form.is_chosen] == [name]
    assert all(bool(form.sentence) != form.is_chosen for form in forms)
    assert all(form.kernel or form.sentence for form in forms)


@pytest.mark.parametrize("name", ["aligned rows", "partial im2col", "packed weight"])
def test_a_form_with_copies_is_chosen_by_time(name, monkeypatch):
    """What it is compared with takes longer; were it to take longer itself, it would not be."""
    members = CASES[name]()
    (row,) = (r for r in BY_TIME if r.name == name)
    clocks = {f.name: f.clocks for f in weighed(read(members)) if f.clocks is not None}
    others = [clocks[n] for n in row.instead_of if n in clocks]
    assert clocks[name] < min(others)
    slower = forms_gpu.Timed(*row[:3], lambda *given: _slow(row.make(*given), max(others) + 1))
    monkeypatch.setattr(forms_gpu, "BY_TIME", (slower,))
    assert choose(read(members)).name in row.instead_of
    (told,) = (f for f in weighed(read(members)) if f.name == name)
    assert told.sentence == "Estimated to be slower."


def _slow(form, clocks):
    return forms_gpu.GemmForm(
        form.contraction, form.gemm, form.device, form.copies, with_copies=clocks
    )


def test_a_rank_is_no_matter_of_time(monkeypatch):
    """An implicit GEMM is taken before the product as it is, and says so."""
    product_ = read(CASES["implicit GEMM"]())
    forms = {form.name: form for form in weighed(product_)}
    assert forms["as it is"].sentence == "The form 'implicit GEMM' takes precedence."
    monkeypatch.setattr(forms_gpu, "BY_RANK", BY_RANK[::-1])
    monkeypatch.setattr(forms_gpu, "BY_TIME", ())
    assert choose(product_).name == "as it is"


def test_forms_are_made_lazily(monkeypatch):
    """Nothing behind the first of the ranks is asked, and no copies but for what they stand for."""
    asked = []

    def watched(row):
        return row._replace(make=lambda *given: asked.append(row.name) or row.make(*given))

    monkeypatch.setattr(forms_gpu, "BY_RANK", tuple(map(watched, BY_RANK)))
    monkeypatch.setattr(forms_gpu, "BY_TIME", tuple(map(watched, BY_TIME)))
    assert choose(read(CASES["grouped convolution"]())).name == "grouped convolution"
    assert asked == ["ragged rows", "grouped convolution"]


def test_a_refusal_for_the_group_ends_the_search():
    """Rows of experts that would be computed for every tile: no other form is asked."""
    given, body = experts(8192, 4, 64, 128)

    def computed(emit, x, w, ends, b):
        return body(emit, emit(op.nn.gelu(x)), w, ends, b)

    refusal = choose(read(group(given, computed, CUDA)))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "prologue_recomputed"


def test_what_a_kernel_does_beside_the_product_is_a_reading():
    members = group(*with_epilogue(64, 64, 64)[:2], CUDA)
    product_ = read(members)
    assert product_.reading is Reading.PRODUCT
    (dual, *_) = weighed(product_)
    assert dual.sentence == "The group is read as one product."


def test_few_rows_have_no_tile_that_copies_would_make_faster():
    forms = {f.name: f for f in weighed(read(group(*product(4, 64, 128)[:2], CUDA)))}
    assert forms["as it is"].kernel in ("gemv", "skinny mma.sync")
    assert forms["as it is"].clocks is None
    assert "no tile" in forms["aligned rows"].sentence


def test_without_wgmma_rows_are_not_copied():
    members = CASES["aligned rows"]()
    found = read_product(members, inlined(members.program), parse("cuda:sm_80").device)
    (aligned,) = (form for form in weighed(found) if form.name == "aligned rows")
    assert aligned.sentence == "The device has no wgmma."
