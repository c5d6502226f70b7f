"""Linear algebra: small batches of random matrices against torch in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Functions  # noqa: E402
from tvm_fusion.core.decisions import recording  # noqa: E402
from tvm_fusion.errors import UserError  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

linalg = torch.linalg
pytestmark = pytest.mark.torch


def check(run, functions, *arguments, rtol=2e-4, atol=2e-4):
    module = Functions(*functions)
    results = run(
        import_model(torch.export.export(module, arguments)).mod, *(a.numpy() for a in arguments)
    )
    expected = module(*(a.double() for a in arguments))
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_allclose(result, wanted.numpy(), rtol, atol, err_msg=str(number))


def test_factorizations_and_solutions(run):
    torch.manual_seed(0)
    a, b, tall = torch.randn(2, 5, 5), torch.randn(2, 5, 3), torch.randn(2, 7, 4)

    def spd(a):
        return a @ a.mT + torch.eye(5, dtype=a.dtype)

    functions = [
        lambda a, b, t: linalg.det(a),
        lambda a, b, t: linalg.slogdet(a).logabsdet,
        lambda a, b, t: linalg.slogdet(a).sign,
        lambda a, b, t: linalg.inv(spd(a)),
        lambda a, b, t: linalg.solve(a, b),
        lambda a, b, t: linalg.solve(a, b.mT, left=False),
        lambda a, b, t: linalg.solve(a, b[..., 0]),
        lambda a, b, t: torch.linalg.lu(t)[0] @ torch.linalg.lu(t)[1] @ torch.linalg.lu(t)[2],
        lambda a, b, t: linalg.lu_factor(a)[0],
        lambda a, b, t: torch.lu_solve(b, *linalg.lu_factor(a)),
        lambda a, b, t: linalg.cholesky(spd(a)),
        lambda a, b, t: linalg.cholesky(spd(a), upper=True),
        lambda a, b, t: torch.cholesky_solve(b, linalg.cholesky(spd(a))),
        lambda a, b, t: linalg.solve_triangular(a.tril() + 3 * torch.eye(5), b, upper=False),
        lambda a, b, t: linalg.solve_triangular(
            a.triu() + 3 * torch.eye(5), b.mT, upper=True, left=False
        ),
        lambda a, b, t: linalg.qr(t)[0],
        lambda a, b, t: linalg.qr(t)[1],
        lambda a, b, t: linalg.qr(t.mT)[1],
        lambda a, b, t: linalg.qr(t, mode="complete")[0],
    ]
    check(run, functions, a, b, tall)


def test_spectra(run):
    torch.manual_seed(1)
    a, wide = torch.randn(2, 6, 6), torch.randn(3, 8)
    functions = [
        lambda a, w: linalg.svdvals(a),
        lambda a, w: linalg.svdvals(w),
        lambda a, w: linalg.eigvalsh(a + a.mT),
        lambda a, w: linalg.pinv(w),
        lambda a, w: linalg.pinv(torch.cat([w, w[:1] * 2])),  # of rank 3
        lambda a, w: linalg.matrix_norm(a, "nuc"),
        lambda a, w: linalg.matrix_norm(a, 2),
        lambda a, w: linalg.matrix_exp(a),
    ]
    check(run, functions, a, wide)


def test_checks_of_singular_matrices_are_told():
    program = torch.export.export(Functions(linalg.inv), (torch.eye(3),))
    with recording() as decisions:
        import_model(program)
    (told,) = [d.sentence for d in decisions if d.code == "assertion"]
    assert "linalg_inv_ex does not check its matrices" in told


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: linalg.eigh(x)[1], r"_linalg_eigh with eigenvectors.*linalg\.eigvalsh"),
        (lambda x: linalg.svd(x)[2], r"_linalg_svd with singular vectors.*linalg\.svdvals"),
        (lambda x: linalg.eigvals(x).abs(), r"linalg_eig on complex tensors"),
    ],
)
def test_vectors_of_any_sign_are_refused(function, sentence):
    program = torch.export.export(Functions(function), (torch.randn(3, 3),))
    with pytest.raises(UserError, match=sentence):
        import_model(program)
