"""Which records a claim gets: hard mismatches hide them, soft ones are told."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.device import Device
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database import tuned_configs as module
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.database.records import Records
from tvm_fusion.fusion.database.tuned_configs import differences, tuned_configs
from tvm_fusion.fusion.database.tuning_records import TuningRecords

VERSIONS = {"tvm_fusion": "0.1.0", "apache-tvm": "0.27.0", "template": "contraction"}
DEVICE = ["llvm", "zen9", "Some CPU", 2]
KEY = Key("0123", '["float32"]', '[["8"]]', json.dumps(DEVICE), json.dumps(VERSIONS))
CLAIM = SimpleNamespace(group=None, template=SimpleNamespace(name="contraction"))
CPU = Device("llvm", "zen9", "Some CPU", cores=2)


def device(**changes):
    fields = dict(zip(("kind", "arch", "name", "cores"), DEVICE, strict=True))
    return replace(KEY, device=json.dumps([*{**fields, **changes}.values()]))


def versions(**changes):
    named = {name.replace("apache_tvm", "apache-tvm"): v for name, v in changes.items()}
    return replace(KEY, versions=json.dumps({**VERSIONS, **named}))


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (KEY, []),
        (device(name="Another CPU"), ["on Another CPU"]),
        (versions(apache_tvm="0.26.0"), ["with apache-tvm 0.26.0"]),
        (versions(tvm_fusion="0.0.9"), ["with tvm_fusion 0.0.9"]),
        (device(kind="cuda"), None),
        (device(arch="zen8"), None),
        (device(cores=4), None),
        (replace(KEY, device=json.dumps([*DEVICE, "tf32"])), None),
        (versions(template="rows"), None),
    ],
)
def test_mismatches(record, found):
    assert differences(record, KEY) == found


@pytest.fixture
def lookup(tmp_path, monkeypatch):
    """Ask for the key above after some tasks were recorded."""
    monkeypatch.setattr(module.Key, "of", staticmethod(lambda *_: KEY))

    def ask(*tasks):
        path = tmp_path / "r.db"
        with Records.open(path) as records:
            for key, config, us, default_us in tasks:
                TuningRecords(records).put_best(key, "a title", config, us, default_us)
        return tuned_configs(path)(CLAIM, CPU)

    return ask


def test_an_exact_record(lookup):
    found = lookup((KEY, {"mr": 6}, 10.0, 15.0))
    assert (found.config, found.gain, found.note) == ({"mr": 6}, 1.5, "")
    assert found.source.startswith("record 1 of r.db (")


def test_an_exact_record_comes_before_a_better_one_of_another_device(lookup):
    other = device(name="Another CPU")
    found = lookup((other, {"mr": 8}, 10.0, 90.0), (KEY, {"mr": 6}, 10.0, 15.0))
    assert found.config == {"mr": 6}


def test_a_soft_mismatch_is_told(lookup):
    found = lookup((device(name="Another CPU"), {"mr": 8}, 10.0, 15.0))
    assert (found.config, found.note) == ({"mr": 8}, ", measured on Another CPU")


def test_nothing_of_a_hard_mismatch(lookup):
    refusal = lookup((device(cores=4), {"mr": 8}, 10.0, 15.0))
    assert isinstance(refusal, Refusal)
    assert (
        "r.db has measured these kernels on llvm zen9 (Some CPU) 4 cores and not on llvm zen9 "
        "(Some CPU) 2 cores: defaults are used"
    ) in refusal.sentence


def test_nothing_of_another_template(lookup):
    assert lookup((versions(template="rows"), {"mr": 8}, 10.0, 15.0)) is None


def test_other_devices_are_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Key, "of", staticmethod(lambda *_: KEY))
    with Records.open(tmp_path / "r.db") as records:
        TuningRecords(records).put_best(device(arch="zen8"), "a title", {"mr": 6}, 10.0, 15.0)
    lookup = tuned_configs(tmp_path / "r.db")
    assert isinstance(lookup(CLAIM, CPU), Refusal)
    assert lookup(CLAIM, CPU) is None


def test_nothing_where_the_default_is_the_best(lookup):
    assert lookup((KEY, {"mr": 8}, 15.0, 15.0)) is None


def test_a_default_of_this_device_comes_before_the_gain_of_another(lookup):
    other = device(name="Another CPU")
    assert lookup((other, {"mr": 8}, 10.0, 90.0), (KEY, {"mr": 6}, 15.0, 15.0)) is None


def test_records_that_are_named_must_exist(tmp_path):
    with pytest.raises(UserError, match=r"there are no records '.*none\.db'; expected a file"):
        tuned_configs(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_the_environment_names_records(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Key, "of", staticmethod(lambda *_: KEY))
    monkeypatch.delenv("TVM_FUSION_RECORDS", raising=False)
    assert tuned_configs()(CLAIM, CPU) is None
    with Records.open(tmp_path / "r.db") as records:
        TuningRecords(records).put_best(KEY, "a title", {"mr": 6}, 10.0, 15.0)
    monkeypatch.setenv("TVM_FUSION_RECORDS", str(tmp_path / "r.db"))
    assert tuned_configs()(CLAIM, CPU).config == {"mr": 6}
