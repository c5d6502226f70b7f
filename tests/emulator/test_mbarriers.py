"""The emulator orders accesses of shared memory by mbarriers, and finds what they do not order."""

import numpy as np
import pytest
from emulator.launch import launch
from emulator.memory import EmulationError
from emulator.wgmma_gemm import uniform
from group_kernels import CUDA
from tvm import tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, loop, sequence, threads, when
from tvm_fusion.schedule.gpu.memory import mbarrier, tma
from tvm_fusion.schedule.gpu.memory.cp_async import warp_sync
from tvm_fusion.schedule.gpu.memory.shared_tiles import (
    block_barrier,
    load_shared,
    store_shared,
    touch,
)

TARGET = CUDA.tvm_target()
ROUNDS = 4
BOX = 1024  # bytes: eight rows
WORDS = BOX // 4
NOTHING = tirx.Evaluate(0)


def kernel(params, size, counts, roles, before=()):
    """A block of ``roles``, a function for each warpgroup, behind initialized mbarriers."""
    at_bars = -(-size // 16) * 16
    held = tirx.decl_buffer(
        [index(at_bars + 16 * len(counts))],
        "uint8",
        "held",
        scope="shared.dyn",
        data_alignment=1024,
        layout=None,
    )

    def place(offset):
        return load(held, [offset])

    def bar(i):
        return place(index(i) * mbarrier.BYTES + at_bars)

    word = local("word", [2], "float32")

    def thread(t):
        group = tirx.Var("group", "int32")
        init = [mbarrier.init(bar(i), count) for i, count in enumerate(counts)]
        value = load(word, [index(0)])
        clear = [
            tirx.BufferStore(word, tirx.const(0, "float32"), [0]),
            when(t < 128, store_shared(place(t % 128 * 4), value, 4)) if not before else NOTHING,
        ]
        first, second = roles(bar, place, t, tirx.Cast("int64", group), word)
        parts = [
            touch(held, at_bars + 16 * len(counts) - 1),
            when(t.equal(0), sequence([*init, mbarrier.fence_init()])),
            *clear,
            block_barrier(),
            tirx.Bind(group, uniform(t // 128)),
            tirx.IfThenElse(group.equal(0), first, second),
        ]
        return block("thread", sequence(parts), [word])

    body = block("block", threads("threadIdx.x", 384, thread), [held])
    grid = threads("blockIdx.x", 2, lambda b: body)
    func = tirx.PrimFunc(params, block("root", sequence([*before, grid])))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True})


def in_turns(mistake):
    """Two warpgroups add to words in turns; a third one waits for both, and stores them."""
    y = declare((128,), "float32", "y")

    def roles(bar, place, t, group, word):
        value, mine = load(word, [index(0)]), place(t % 128 * 4)
        more = tirx.BufferStore(word, value * 2 + tirx.Cast("float32", group), [0])

        def turn(i):
            wait = mbarrier.wait(bar(group - 1), (i + 2 - group) % 2)
            arrive = mbarrier.arrive(bar(2 - group))
            parts = [wait, load_shared(value, mine, 4), more, store_shared(mine, value, 4), arrive]
            if mistake == "no wait":
                parts[0] = NOTHING
            if mistake == "arrival before the store":
                parts[3:] = parts[:2:-1]
            if mistake == "one arrival":
                parts[4] = when((t % 128).equal(0), arrive)
            return sequence(parts)

        done = tirx.BufferStore(y, value, [t % 128])
        store = [mbarrier.wait(bar(2), index(0)), load_shared(value, mine, 4), done]
        return sequence(store), sequence([loop("i", ROUNDS, turn), mbarrier.arrive(bar(2))])

    turns = 1 if mistake == "one arrival" else 128
    return kernel([y], 512, [turns, turns, 256], roles)


def test_warpgroups_in_turns():
    y = np.zeros(128, "float32")
    launch(in_turns(""), [y], TARGET)
    want = 0
    for _ in range(ROUNDS):
        want = (want * 2 + 1) * 2 + 2
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("no wait", "without a barrier"),
        ("arrival before the store", "without a barrier"),
        ("one arrival", "without a barrier"),
    ],
)
def test_wrong_turns(mistake, message):
    with pytest.raises(EmulationError, match=message):
        launch(in_turns(mistake), [np.zeros(128, "float32")], TARGET)


def copied(mistake):
    """Boxes that one thread copies to two stages; two warpgroups read all words of each."""
    x, y = declare((ROUNDS * 8, 32), "float32", "x"), declare((ROUNDS * WORDS,), "float32", "y")
    view = tma.TensorMap(x, index(0), (index(32), index(ROUNDS * 8)), (index(32),), (32, 8))
    tensor_map, before = view.encode("x_map")

    def roles(bar, place, t, group, word):
        value = load(word, [index(0)])

        def produce(i):
            full = bar(i % 2)
            return sequence(
                [
                    mbarrier.wait(bar(i % 2 + 2), (i // 2 + 1) % 2),
                    mbarrier.expect_bytes(full, BOX),
                    tma.load(place(i % 2 * BOX), tensor_map, full, [index(0), i * 8]),
                ]
            )

        def consume(i):
            mine = (t - 128 + 1) % 256
            release = when((t % 32).equal(0), mbarrier.arrive(bar(i % 2 + 2)))
            wait = mbarrier.wait(bar(i % 2), i // 2 % 2)
            if mistake == "one lane waits":
                wait = when((t % 32).equal(0), wait)
            return sequence(
                [
                    wait,
                    load_shared(value, place(i % 2 * BOX + mine * 4), 4),
                    NOTHING if mistake == "no barrier of warps" else warp_sync(),
                    release,
                    tirx.BufferStore(y, value, [i * WORDS + mine]),
                ]
            )

        producer = when(t.equal(0), loop("i", ROUNDS, produce))
        return producer, loop("i", ROUNDS, consume)

    return kernel([x, y], 2 * BOX, [1, 1, 8, 8], roles, before)


def run_copied(mistake=""):
    x = np.random.default_rng(2).standard_normal((ROUNDS * 8, 32)).astype("float32")
    y = np.zeros(ROUNDS * WORDS, "float32")
    launch(copied(mistake), [x, y], TARGET)
    return x, y.reshape(ROUNDS * 8, 8, 4)


def test_copies_that_threads_read():
    x, y = run_copied()
    swizzled = np.arange(8) ^ np.arange(ROUNDS * 8)[:, None] % 8
    found = np.take_along_axis(y, swizzled[..., None], 1)
    np.testing.assert_array_equal(found.reshape(x.shape), x)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("no barrier of warps", "written by a copy while threads may still read it"),
        ("one lane waits", "read before its copy was waited for"),
    ],
)
def test_wrong_readers(mistake, message):
    with pytest.raises(EmulationError, match=message):
        run_copied(mistake)
