"""The file of measurements: keys that are the same everywhere, and files that are not ours."""

import os
import sqlite3
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from relax_modules import main_module
from tvm import relax, tirx

from tvm_fusion import transform
from tvm_fusion.device import GPUS, Device, parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.errors import UserError
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.database.records import Records, default_records
from tvm_fusion.fusion.database.tuning_records import TuningRecords
from tvm_fusion.program.group import Group

pytestmark = pytest.mark.slow_beyond(2)

CPU = Device("llvm", "some", "Some CPU", cores=2)
KEY = Key("0123", '["float32"]', '[["8"]]', '["llvm"]', "{}")


def group(rows=None, columns=33, dtype="float32", members=slice(None), names="xyn", weight=False):
    """``softmax(x) + y``, or one of the two, over a symbolic number of rows unless it is given."""
    shape = (rows or tirx.Var(names[2], "int64"), columns)
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name in names[:2]]
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs={"num_input": 1} if weight else None):
        with builder.dataflow():
            softmax = builder.emit(relax.op.nn.softmax(params[0]), name_hint=names[0] + "1")
            output = builder.emit_output(relax.op.add(softmax, params[1]))
        builder.emit_func_output(output)
    with parse("cpu").tvm_target():
        mod = transform.Legalize()(builder.get())
    graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
    return Group(graph.operators[members])


def key(device=CPU, template="rows", **of):
    return Key.of(group(**of), template, device)


def test_keys_know_no_names():
    assert key() == key(names="abm")


@pytest.mark.slow
def test_keys_are_the_same_in_another_process():
    code = "import test_records as t; print(t.key())"
    here = os.path.dirname(__file__)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), here, *sys.path])
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == str(key()), run.stderr


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"rows": 8}, {"structure", "shapes"}),
        ({"columns": 34}, {"structure", "shapes"}),
        ({"dtype": "float64"}, {"structure", "dtypes"}),
        ({"weight": True}, {"structure"}),
        ({"members": slice(1)}, {"structure", "dtypes", "shapes"}),
        ({"template": "other"}, {"versions"}),
        ({"device": replace(CPU, cores=1)}, {"device"}),
        ({"device": replace(CPU, name="Another CPU")}, {"device"}),
        ({"device": GPUS["sm_80"]}, {"device"}),
    ],
    ids=lambda value: "-".join(sorted(value)),
)
def test_keys_tell_apart(change, differs):
    base, other = asdict(key()), asdict(key(**change))
    assert {field for field in base if base[field] != other[field]} == differs


def test_wiring_is_structure():
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))

    def subtract(swap):

        def result(emit, *_):
            y = emit(relax.op.exp(x))
            pair = (y, x) if swap else (x, y)
            return relax.op.subtract(*pair)

        with parse("cpu").tvm_target():
            mod = transform.Legalize()(main_module([x], result))
        graph = Graph(mod, mod["main"], mod["main"].body.blocks[0])
        return Key.of(Group(graph.operators), "map", CPU)

    assert subtract(False).structure != subtract(True).structure
    assert subtract(True) == subtract(True)


def put(records, key=KEY, us=1.0):
    TuningRecords(records).put_best(key, "matmul", {"mr": 4}, us, 20.0)


def got(records, key=KEY):
    best = TuningRecords(records).best(key)
    return best and best.us


def test_what_is_put_is_found(tmp_path):
    with Records.open(tmp_path / "r.db") as records:
        assert got(records) is None
        put(records, us=12.5)
        put(records, replace(KEY, device="x"), 19.0)
        assert got(records) == 12.5
        put(records, us=11.0)
    with Records.open(tmp_path / "r.db") as records:
        assert got(records) == 11.0
        assert len(TuningRecords(records).tasks()) == 2


@pytest.mark.slow
def test_two_processes_write_at_once(tmp_path):
    path = tmp_path / "r.db"
    code = (
        "import sys; from test_records import Key, Records, put\n"
        "r = Records.open(sys.argv[1])\n"
        "for i in range(20): put(r, Key('', '', f'{sys.argv[2]} {i}', '', ''), 1.0 + i)\n"
    )
    here = os.path.dirname(__file__)
    place = os.pathsep.join([os.environ.get("PYTHONPATH", ""), here, *sys.path])
    env = {**os.environ, "PYTHONPATH": place}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), who], env=env) for who in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    with Records.open(path) as records:
        assert len(TuningRecords(records).tasks()) == 40
        assert got(records, Key("", "", "b 19", "", "")) == 20.0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_changes_that_belong_together_are_all_there_or_none(tmp_path, error):
    with Records.open(tmp_path / "r.db") as records:
        with records.transaction():
            put(records, us=2.0)

        def half():
            with records.transaction():
                put(records, us=1.0)
                raise error

        with pytest.raises(error):
            half()
        assert got(records) == 2.0


def test_an_empty_file_becomes_records(tmp_path):
    path = tmp_path / "r.db"
    path.touch()
    with Records.open(path) as records:
        put(records)
    with Records.open(path) as records:
        assert got(records) == 1.0


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("TVM_FUSION_RECORDS", raising=False)
    assert default_records() is None
    monkeypatch.setenv("TVM_FUSION_RECORDS", "")
    assert default_records() is None
    monkeypatch.setenv("TVM_FUSION_RECORDS", str(tmp_path / "r.db"))
    assert default_records().path == tmp_path / "r.db"


class TestMistakes:
    """One sentence each: what was found, what was expected, what to do."""

    @pytest.mark.parametrize("times", [1, 30])
    def test_text(self, tmp_path, times):
        path = tmp_path / "notes.txt"
        path.write_text("These are notes, and no database at all.\n" * times)
        with pytest.raises(
            UserError, match=r"cannot be used .*not a database.*; expected a SQLite"
        ):
            Records.open(path)
        assert path.read_text().startswith("These are notes")

    def test_one_byte(self, tmp_path):
        """SQLite would take it for a new file, and overwrite it."""
        path = tmp_path / "x"
        path.write_bytes(b"x")
        with pytest.raises(UserError, match=r"cannot be used \(file is not a database\)"):
            Records.open(path)
        assert path.read_bytes() == b"x"

    def test_another_database(self, tmp_path):
        path = tmp_path / "other.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE measured (something INTEGER)")
        before = path.read_bytes()
        with pytest.raises(UserError, match=r"something else; expected records .*; set TVM_FUSION"):
            Records.open(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("version", [2, 4])
    def test_another_format(self, tmp_path, version):
        path = tmp_path / "r.db"
        Records.open(path).close()
        with sqlite3.connect(path) as later:
            later.execute(f"PRAGMA user_version = {version}")
        words = f"have format {version}; expected records of format 3"
        with pytest.raises(UserError, match=words):
            Records.open(path)

    def test_damage_behind_the_header(self, tmp_path):
        path = tmp_path / "r.db"
        with Records.open(path) as records:
            for i in range(20):
                put(records, replace(KEY, shapes=f"{i:500}"))
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        with (
            pytest.raises(UserError, match=r"cannot be used .*malformed"),
            Records.open(path) as records,
        ):
            got(records)

    @pytest.mark.parametrize("where", [".", "missing/r.db"])
    def test_no_place_for_a_file(self, tmp_path, where):
        with pytest.raises(UserError, match=r"folder; expected a file; name another"):
            Records.open(tmp_path / where)

    def test_read_only_files_are_read_and_not_written(self, tmp_path, monkeypatch):
        path = tmp_path / "r.db"
        with Records.open(path) as records:
            put(records, us=3.0)
        # The superuser may write everything, so permissions alone would test nothing for some.
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        path.chmod(0o444)
        with Records.open(path) as records:
            assert got(records) == 3.0
            with pytest.raises(UserError, match=r"read-only; expected a writable file"):
                put(records, us=4.0)
            assert got(records) == 3.0

    def test_a_missing_file_in_a_read_only_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        with pytest.raises(UserError, match=r"cannot be used .*unable to open"):
            Records.open(tmp_path / "r.db")
