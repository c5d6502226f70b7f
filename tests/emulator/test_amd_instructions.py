"""Single instructions of AMD GPUs against what their guides say, computed another way."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from emulator.amd_kernels import launch

LANES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}


def results(lines, words, arch="gfx942"):
    """Word 20 of all lanes, after v10 to v15 were loaded with six words of each."""
    load, store, wide = {
        64: ("global_load_dwordx2", "global_store_dwordx2", "s_load_dwordx4"),
        32: ("global_load_b64", "global_store_b64", "s_load_b128"),
    }[LANES[arch]]
    body = f"""
  {wide} s[4:7], s[0:1], 0x0
  v_mul_u32_u24_e32 v1, 24, v0
  v_lshlrev_b32_e32 v2, 3, v0
  v_mov_b32_e32 v20, -1
  v_mov_b32_e32 v21, -1
  s_waitcnt lgkmcnt(0)
  {load} v[10:11], v1, s[4:5]
  {load} v[12:13], v1, s[4:5] offset:8
  {load} v[14:15], v1, s[4:5] offset:16
  s_waitcnt vmcnt(0)
  {lines}
  {store} v2, v[20:21], s[6:7]
"""
    lanes = LANES[arch]
    given = np.zeros((lanes, 6), "u4")
    words = np.asarray(words, "u4")
    given[:, : words.shape[1]] = np.resize(words, (lanes, words.shape[1]))
    out = np.zeros((lanes, 2), "u4")
    launch(body, given, out, arch=arch, threads=lanes)
    return given, out


def floats(rng, count, width=30):
    values = rng.standard_normal((64, count)) * 2.0 ** rng.integers(-width, width, (64, count))
    return values.astype("f4").view("u4")


def as_float(word):
    return struct.unpack("<f", struct.pack("<I", int(word)))[0]


def signed(word, bits=32):
    return int(word) - (1 << bits) if int(word) >> bits - 1 else int(word)


@pytest.mark.parametrize(
    ("arch", "line"),
    [
        ("gfx90a", "v_pk_mov_b32 v[20:21], v[20:21], v[20:21] op_sel:[1,0]"),
        ("gfx1100", "v_dual_mov_b32 v20, v21 :: v_dual_mov_b32 v21, v20"),
    ],
)
def test_moves_of_two_registers_read_both_first(arch, line):
    given, out = results(
        f"v_mov_b32_e32 v20, v10\n  v_mov_b32_e32 v21, v11\n  {line}",
        np.random.default_rng().integers(0, 1 << 32, (LANES[arch], 6), "u8"),
        arch,
    )
    assert out.tolist() == given[:, [1, 0]].tolist()


@pytest.mark.parametrize("arch", LANES)
def test_fma_rounds_once(arch):
    given, out = results(
        "v_fma_f32 v20, v10, v12, v14", floats(np.random.default_rng(), 6, 9), arch
    )
    for words, word in zip(given, out[:, 0], strict=True):
        a, b, c = (Fraction(as_float(words[i])) for i in (0, 2, 4))
        exact, got = a * b + c, Fraction(as_float(word))
        step = Fraction(2) ** (math.frexp(float(exact))[1] - 25)
        assert abs(got - exact) <= step


def test_fma_at_a_tie_of_its_double():
    # 2^24 + 1 + tiny: in 64 bits a tie that rounds down to even, exactly it rounds up.
    words = np.array([[4097.0, 0, 4095.0, 0, 2.0, 0]], "f4")
    words[0, 4] = np.float32(2) + np.float32(2.0**-22)
    _, out = results("v_fma_f32 v20, v10, v12, v14", words.view("u4"))
    exact = Fraction(4097) * 4095 + Fraction(float(words[0, 4]))
    low = Fraction(2) ** 24
    assert Fraction(as_float(out[0, 0])) == (low if exact - low < 1 else low + 2)


WORDS = [
    ("v_add_u32_e32 v20, v10, v12", lambda a, b, c: a + b),
    ("v_sub_u32_e32 v20, v10, v12", lambda a, b, c: a - b),
    ("v_mul_lo_u32 v20, v10, v12", lambda a, b, c: a * b),
    ("v_mul_hi_u32 v20, v10, v12", lambda a, b, c: a * b >> 32),
    ("v_mul_hi_i32 v20, v10, v12", lambda a, b, c: signed(a) * signed(b) >> 32),
    ("v_mad_u32_u24 v20, v10, v12, v14",
     lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    ("v_mul_i32_i24_e32 v20, v10, v12",
     lambda a, b, c: signed(a & 0xFFFFFF, 24) * signed(b & 0xFFFFFF, 24)),
    ("v_lshl_add_u32 v20, v10, 3, v12", lambda a, b, c: (a << 3) + b),
    ("v_ashrrev_i32_e32 v20, 5, v10", lambda a, b, c: signed(a) >> 5),
    ("v_bfe_u32 v20, v10, 7, 11", lambda a, b, c: a >> 7 & 0x7FF),
    ("v_bfe_i32 v20, v10, 24, 12", lambda a, b, c: signed(a) >> 24),
    ("v_bfi_b32 v20, v10, v12, v14", lambda a, b, c: a & b | ~a & c),
    ("v_perm_b32 v20, v10, v12, v14 ; v14 = 0x0c0d0603", lambda a, b, c: 0x00FF0000
     | (a >> 16 & 0xFF) << 8 | b >> 24),
    ("v_alignbit_b32 v20, v10, v12, 9", lambda a, b, c: (a << 32 | b) >> 9),
    ("v_bfrev_b32_e32 v20, v10", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    ("v_ffbh_u32_e32 v20, v10", lambda a, b, c: 32 - a.bit_length() if a else -1),
    ("v_ffbl_b32_e32 v20, v10", lambda a, b, c: (a & -a).bit_length() - 1),
    ("v_bcnt_u32_b32 v20, v10, v12", lambda a, b, c: a.bit_count() + b),
    ("v_med3_i32 v20, v10, v12, v14",
     lambda a, b, c: sorted([signed(a), signed(b), signed(c)])[1]),
    ("v_cmp_gt_i32_e32 vcc, v10, v12\n  v_cndmask_b32_e32 v20, v12, v10, vcc",
     lambda a, b, c: max(signed(a), signed(b))),
    ("v_add_co_u32_e32 v19, vcc, v10, v12\n  v_addc_co_u32_e32 v20, vcc, v14, v14, vcc",
     lambda a, b, c: 2 * c + (a + b >> 32)),
    ("v_mad_u64_u32 v[16:17], vcc, v10, v12, v[14:15]\n  v_mov_b32_e32 v20, v17",
     lambda a, b, c: a * b + c >> 32),
    ("v_add_u32_sdwa v20, sext(v10), v12 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE "
     "src0_sel:BYTE_3 src1_sel:WORD_0",
     lambda a, b, c: (signed(a >> 24, 8) + b & 0xFFFF) << 16 | 0xFFFF),
    ("v_and_or_b32 v20, v10, v12, v14", lambda a, b, c: a & b | c),
    ("v_lshlrev_b16_e32 v20, 3, v10", lambda a, b, c: a << 3 & 0xFFFF),
    ("v_mad_legacy_u16 v20, v10, v12, v14", lambda a, b, c: a * b + c & 0xFFFF),
    ("v_pk_add_u16 v20, v10, v12 op_sel_hi:[0,1]",
     lambda a, b, c: (a + b & 0xFFFF) | (a + (b >> 16) & 0xFFFF) << 16),
    ("v_dot4_i32_i8 v20, v10, v12, v14",
     lambda a, b, c: c + sum(signed(a >> s & 255, 8) * signed(b >> s & 255, 8)
                             for s in (0, 8, 16, 24))),
]  # fmt: skip


@pytest.mark.parametrize(("line", "function"), WORDS, ids=[line.split()[0] for line, _ in WORDS])
def test_words(line, function):
    words = np.random.default_rng().integers(0, 1 << 32, (64, 6), "u8").astype("u4")
    words[:, 5] = 0
    if "v14 = " in line:
        words[:, 4] = int(line.split()[-1], 16)
        line = line.split(";")[0]
    given, out = results(line, words)
    wanted = [function(*(int(w) for w in row[[0, 2, 4]])) & 0xFFFFFFFF for row in given]
    assert out[:, 0].tolist() == wanted


BIT_SEARCHES = [
    ("s_flbit_i32_b32 s10, s8", "s_clz_i32_u32", lambda x: 32 - x.bit_length()),
    ("s_flbit_i32_b64 s10, s[8:9]", "s_clz_i32_u64", lambda x: 64 - x.bit_length()),
    ("s_flbit_i32 s10, s8", "s_cls_i32",
     lambda x: 32 - (signed(x) ^ signed(x) >> 31).bit_length()),
    ("s_ff1_i32_b32 s10, s8", "s_ctz_i32_b32", lambda x: (x & -x).bit_length() - 1),
    ("s_ff1_i32_b64 s10, s[8:9]", "s_ctz_i32_b64", lambda x: (x & -x).bit_length() - 1),
]  # fmt: skip


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("line", "name", "function"), BIT_SEARCHES)
def test_searches_for_a_bit(line, name, function, arch):
    """The bit found may be in either half; none is found in zero."""
    rng = np.random.default_rng()
    line = line if arch == "gfx942" else name + line[line.index(" ") :]
    for shift in (0, int(rng.integers(1, 31)), int(rng.integers(33, 62))):
        whole = int(rng.integers(1 << 62, 1 << 63)) | 1
        for value in (whole >> shift, whole << shift & (1 << 64) - 1, 0):
            low, high = value & 0xFFFFFFFF, value >> 32
            searched = value if "64" in line else low
            wanted = function(searched) if searched else -1
            lines = f"v_readfirstlane_b32 s8, v10\n  v_readfirstlane_b32 s9, v12\n  {line}"
            _, out = results(f"{lines}\n  v_mov_b32_e32 v20, s10", [[low, 0, high]], arch)
            assert set(out[:, 0].tolist()) == {wanted & 0xFFFFFFFF}, hex(value)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [  # 32 bits of a literal are an integer's low half, and a float's high half
        ("v_mov_b64_e32 v[20:21], 0x1200", 0x1200),
        ("v_mov_b64_e32 v[20:21], 0x80001200", 0x80001200),
        ("v_mov_b64_e32 v[20:21], -3", (1 << 64) - 3),
        ("v_mov_b64_e32 v[20:21], 1.0", 0x3FF00000_00000000),
        ("v_floor_f64_e32 v[20:21], 0x40080000", 0x40080000_00000000),
    ],
)
def test_constants_of_64_bits(line, wanted):
    _, out = results(line, [[0]])
    assert np.unique(out.view("u8")).tolist() == [wanted]


HALF_LANES = {  # which lane each of a row of 16 reads, None for 0
    "row_shr:3": lambda i: i - 3 if i >= 3 else None,
    "row_shl:5": lambda i: i + 5 if i + 5 < 16 else None,
    "row_ror:1": lambda i: (i - 1) % 16,
    "row_mirror": lambda i: 15 - i,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "quad_perm:[1,0,3,2]": lambda i: i ^ 1,
}


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("control", HALF_LANES)
def test_lanes_of_a_row(control, arch):
    words = np.arange(100, 164, dtype="u4")[:, None]
    line = f"s_nop 1\n  v_mov_b32_dpp v20, v10 {control} row_mask:0xf bank_mask:0xf bound_ctrl:1"
    given, out = results(line, words, arch)
    for lane, word in enumerate(out[:, 0]):
        other = HALF_LANES[control](lane % 16)
        assert word == (0 if other is None else given[lane // 16 * 16 + other, 0])


def test_halves_keep_the_rest_of_a_register_on_rdna():
    words = np.random.default_rng().standard_normal((64, 12)).astype("f2").view("u4")
    for line, half in (("v20.l, v10.h, v12.l", 0), ("v20.h, v10.l, v12.h", 1)):
        given, out = results(f"v_add_f16_e32 {line}", words, "gfx1100")
        halves = given.view("f2")
        a, b = (halves[:, 1], halves[:, 4]) if half == 0 else (halves[:, 0], halves[:, 5])
        found = np.ascontiguousarray(out[:, 0]).view("u2").reshape(-1, 2)
        np.testing.assert_array_equal(found[:, half].copy().view("f2"), a + b)
        assert (found[:, 1 - half] == 0xFFFF).all()


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 240.0), ("bf8", 57344.0)])
def test_eight_bits(kind, largest):
    values = np.array([0.0, 1.0, -1.5, 1e9, 0.1, -3.1, 2.0**-9, 17.0], "f4")
    words = np.zeros((8, 6), "u4")
    words[:, 0] = words[:, 2] = values.view("u4")
    line = f"v_cvt_pk_{kind}_f32 v20, v10, v12\n  v_cvt_f32_{kind}_e32 v20, v20"
    _, out = results(line, words)
    found = out[:8, 0].copy().view("f4")
    assert found[3] == largest
    bits = {"fp8": 4, "bf8": 3}[kind]
    chosen = [0, 1, 2, 4, 5, 7]
    np.testing.assert_allclose(found[chosen], values[chosen], rtol=2.0**-bits)


def test_two_dot_products_of_halves_at_once():
    rng = np.random.default_rng()
    halves = rng.standard_normal((32, 12), "f4").astype("f2")
    pair = "v_dual_dot2acc_f32_f16 v20, v10, v12 :: v_dual_dot2acc_f32_f16 v21, v11, v13"
    zeros = "v_mov_b32_e32 v20, 0\n  v_mov_b32_e32 v21, 1.0\n  "
    given, out = results(zeros + pair, halves.view("u4"), "gfx1100")
    a, b = (np.ascontiguousarray(given[:, i : i + 2]).view("f2").astype("f8") for i in (0, 2))
    sums = (a * b).reshape(32, 2, 2).sum(-1) + np.array([0, 1])
    np.testing.assert_allclose(out.view("f4"), sums, rtol=2e-6, atol=1e-6)
