"""Kernels of two commits compared: what is the same says nothing, what differs is shown."""

import pytest

from benchmarks.fusion.graphs import GRAPHS
from benchmarks.kernel_diff.__main__ import ROOT, differences, main
from benchmarks.kernel_diff.collect import graphs, kernels


def written(folder, texts):
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_differences_are_shown_by_graph(tmp_path):
    base = written(
        tmp_path / "base", {"cpu/same": "a\nb\n", "cpu/other": "a\nb\n", "cpu/gone": "a"}
    )
    head = written(tmp_path / "head", {"cpu/same": "a\nb\n", "cpu/other": "a\nc\n"})
    gone, other = differences(base, head, lines=40)
    assert gone.startswith("cpu/gone differs:")
    assert "(no such graph)" in gone
    assert {"-b", "+c"} <= set(other.splitlines())


def test_kernels_are_those_of_the_target():
    case = next(iter(GRAPHS.values())).case("7x1000")
    cpu, again, cuda = (kernels(case.build(), t) for t in ("cpu", "cpu", "cuda:sm_90a"))
    assert cpu == again
    assert "threadIdx.x" not in "".join(cpu)
    assert "threadIdx.x" in "".join(cuda)


def test_names_may_differ(tmp_path):
    kernel = 'with T.sblock("{0}"):\n    for {1} in range(8):\n        {2}[{1}] = T.exp({2}[{3}])\n'
    base = written(tmp_path / "base", {"cpu/g": kernel.format("rows", "i", "x", "i")})
    head = written(tmp_path / "head", {"cpu/g": kernel.format("kernel", "j", "y", "j")})
    assert list(differences(base, head, lines=40))
    assert not list(differences(base, head, lines=40, rename=True))
    written(head, {"cpu/g": kernel.format("kernel", "j", "y", "0")})
    assert list(differences(base, head, lines=40, rename=True))


def test_kinds_of_graphs():
    assert {name.split("-")[0] for name, _ in graphs(["resnet50"], ["graph", "model"])} == {
        "graph",
        "model",
    }


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the command compares commits of git")
def test_a_commit_does_not_differ_from_itself(capsys):
    """One mapping cell, written in a checkout of either side."""
    (name,) = [n for n, _ in graphs([], ["cell"])][:1]
    options = ["--kinds", "cell", "--match", f"^{name}$", "--targets", "cpu"]
    assert main(["HEAD", "HEAD", *options]) == 0
    assert "0 of 1 graphs and targets differ" in capsys.readouterr().out
