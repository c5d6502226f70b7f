"""Design spaces: what a tuner varies, of a configuration or of a part of it, as plain data."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

from tvm_fusion.schedule.index.design_space import Kernels, default_first, distinct, member, varied


@dataclass(frozen=True)
class Tile:
    rows: int
    stages: int


@dataclass(frozen=True)
class Tiled:
    tile: Tile
    turns: bool = False


@dataclass(frozen=True)
class Plain:
    stages: int


KERNELS = Kernels(
    {Tiled: ("tiled", ("tile.rows", "tile.stages", "turns")), Plain: ("plain", ("stages",))}
)


def test_fields_of_a_part_and_of_another_class_share_a_key():
    assert KERNELS.plain(Tiled(Tile(64, 3), True)) == {
        "kernel": "tiled", "rows": 64, "stages": 3, "turns": 1,
    }  # fmt: skip
    assert KERNELS.plain(Plain(4)) == {"kernel": "plain", "rows": 0, "stages": 4, "turns": 0}


def test_a_configuration_is_found_by_its_plain_data():
    space = [Plain(2), Tiled(Tile(64, 3)), Tiled(Tile(64, 4)), Plain(4)]
    assert list(distinct(space, KERNELS.plain)) == space
    claim = SimpleNamespace(template=SimpleNamespace(name="toy"))
    found = [member(claim, KERNELS.plain(one), space, KERNELS.plain) for one in space]
    assert found == space
    refusal = member(claim, KERNELS.plain(Plain(3)), space, KERNELS.plain)
    assert "toy has no configuration of kernel plain, rows 0, stages 3, turns 0" in refusal.sentence


def test_the_default_comes_first_and_once():
    start = Tile(64, 3)
    every = [Tile(32, 2), Tile(32, 3), Tile(64, 2), Tile(64, 3)]
    assert list(varied(start, rows=(32, 64), stages=(2, 3))) == every
    assert list(default_first(start, every)) == [start, *every[:3]]
    assert list(default_first(replace(start, rows=8), every)) == [Tile(8, 3), *every]
