// AMX's tile instructions as functions: what Intel's Software Developer's Manual says that each computes,
// and what it refuses by #UD or #GP. A mistake is noted, and its instruction does nothing.
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <immintrin.h>

enum { TILES = 8, ROWS = 16, BYTES = 64, PALETTES = 1 };

typedef struct {
  int is_configured;
  uint16_t colsb[TILES];
  uint8_t rows[TILES];
  uint8_t data[TILES][ROWS][BYTES];
} State;

// Tiles are registers of a thread. The states stay in a list, so that what threads left is found.
enum { THREADS = 1024 };
static State states[THREADS];
static int threads;
static __thread State *mine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char mistake[256];
static long products;

static State *state(void) {
  if (!mine) {
    int number = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    if (number >= THREADS) __builtin_trap();
    mine = &states[number];
  }
  return mine;
}

__attribute__((format(printf, 1, 2))) static int wrong(const char *form, ...) {
  pthread_mutex_lock(&lock);
  if (!mistake[0]) {
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(mistake, sizeof mistake, form, arguments);
    va_end(arguments);
  }
  pthread_mutex_unlock(&lock);
  return 1;
}

// For the tests: the first mistake since the last call, with products computed meanwhile.
const char *tiles_mistake(void) {
  static char taken[sizeof mistake];
  for (int t = 0; t < threads && t < THREADS; ++t) {
    if (states[t].is_configured) wrong("a kernel returned without tilerelease");
    states[t].is_configured = 0;
  }
  memcpy(taken, mistake, sizeof taken);
  mistake[0] = 0;
  return taken;
}

long tiles_products(void) { return __atomic_exchange_n(&products, 0, __ATOMIC_RELAXED); }

void tile_tilerelease(void) {
  State *s = state();
  if (!s->is_configured) wrong("tilerelease where no tiles are configured");
  memset(s, 0, sizeof *s);
}

void tile_ldtilecfg(const uint8_t *from) {
  State next = {.is_configured = 1};
  uint8_t used[64] = {0};
  used[0] = used[1] = 1;
  if (from[0] == 0) {  // the initial state
    memset(state(), 0, sizeof(State));
    return;
  }
  if (from[0] > PALETTES && wrong("ldtilecfg: palette %d (#GP)", from[0])) return;
  if (from[1] && wrong("ldtilecfg: start row %d, which only an interrupted load leaves", from[1])) return;
  for (int t = 0; t < TILES; ++t) {
    int colsb = from[16 + 2 * t] | from[17 + 2 * t] << 8, rows = from[48 + t];
    used[16 + 2 * t] = used[17 + 2 * t] = used[48 + t] = 1;
    if (colsb > BYTES && wrong("ldtilecfg: %d bytes a row of tile %d (#GP)", colsb, t)) return;
    if (rows > ROWS && wrong("ldtilecfg: %d rows of tile %d (#GP)", rows, t)) return;
    if (!rows != !colsb && wrong("ldtilecfg: %d rows of %d bytes of tile %d (#GP)", rows, colsb, t)) return;
    next.colsb[t] = colsb, next.rows[t] = rows;
  }
  for (int byte = 0; byte < 64; ++byte) {
    if (!used[byte] && from[byte] && wrong("ldtilecfg: reserved byte %d is %d (#GP)", byte, from[byte])) return;
  }
  *state() = next;  // all tiles are zero
}

static State *with(const char *name, int tile) {
  State *s = state();
  if (!s->is_configured) return wrong("%s where no tiles are configured (#UD)", name), NULL;
  if (tile >= TILES || !s->rows[tile]) return wrong("%s: tile %d is not configured (#UD)", name, tile), NULL;
  return s;
}

void tile_tilezero(uint8_t tile) {
  State *s = with("tilezero", tile);
  if (s) memset(s->data[tile], 0, sizeof s->data[tile]);
}

void tile_tileloadd64(uint8_t tile, const uint8_t *from, int64_t stride) {
  State *s = with("tileloadd", tile);
  if (!s) return;
  memset(s->data[tile], 0, sizeof s->data[tile]);  // rows and bytes beyond the configured ones
  for (int row = 0; row < s->rows[tile]; ++row) memcpy(s->data[tile][row], from + row * stride, s->colsb[tile]);
}

void tile_tileloaddt164(uint8_t tile, const uint8_t *from, int64_t stride) { tile_tileloadd64(tile, from, stride); }

void tile_tilestored64(uint8_t tile, uint8_t *to, int64_t stride) {
  State *s = with("tilestored", tile);
  if (!s) return;
  for (int row = 0; row < s->rows[tile]; ++row) memcpy(to + row * stride, s->data[tile][row], s->colsb[tile]);
}

// C, of M rows and N columns, += A, M rows of K pairs or quadruples, times B, K rows of N.
static State *product(const char *name, int c, int a, int b) {
  State *s = with(name, c);
  if (!s || !with(name, a) || !with(name, b)) return NULL;
  if ((c == a || c == b || a == b) && wrong("%s: tiles %d, %d and %d are not three (#UD)", name, c, a, b)) return NULL;
  const int all[3] = {c, a, b};
  for (int i = 0; i < 3; ++i) {
    if (s->colsb[all[i]] % 4 && wrong("%s: %d bytes a row of tile %d (#UD)", name, s->colsb[all[i]], all[i])) return NULL;
  }
  if (s->rows[c] != s->rows[a] && wrong("%s: %d rows of C, %d of A (#UD)", name, s->rows[c], s->rows[a])) return NULL;
  if (s->colsb[c] != s->colsb[b] && wrong("%s: %d columns of C, %d of B (#UD)", name, s->colsb[c] / 4, s->colsb[b] / 4))
    return NULL;
  if (s->colsb[a] / 4 != s->rows[b] && wrong("%s: K is %d in A, %d in B (#UD)", name, s->colsb[a] / 4, s->rows[b]))
    return NULL;
  __atomic_fetch_add(&products, 1, __ATOMIC_RELAXED);
  return s;
}

static inline float of_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline float of_fp16(uint16_t half) { return _cvtsh_ss(half); }

// Sums of even and of odd products apart, each by fused multiply-adds, and their sum added to C; float32's
// subnormals are zero, and so are bfloat16's, but float16's are numbers; rounding is to nearest even, whatever
// the thread's MXCSR says.
static inline void halves(State *s, uint8_t c, uint8_t a, uint8_t b, float (*widened)(uint16_t)) {
  unsigned kept = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // flush to zero, subnormals are zero, no exceptions
  int columns = s->colsb[c] / 4;
  for (int m = 0; m < s->rows[c]; ++m) {
    float even[16] = {0}, odd[16] = {0}, sums[16];
    for (int k = 0; k < s->rows[b]; ++k) {
      uint16_t left[2], right[32];
      memcpy(left, &s->data[a][m][4 * k], 4);
      memcpy(right, s->data[b][k], BYTES);
      for (int n = 0; n < 16; ++n) {
        even[n] = __builtin_fmaf(widened(left[0]), widened(right[2 * n]), even[n]);
        odd[n] = __builtin_fmaf(widened(left[1]), widened(right[2 * n + 1]), odd[n]);
      }
    }
    memcpy(sums, s->data[c][m], BYTES);
    for (int n = 0; n < 16; ++n) sums[n] += even[n] + odd[n];
    memcpy(s->data[c][m], sums, 4 * columns);
  }
  memset(s->data[c][s->rows[c]], 0, (ROWS - s->rows[c]) * BYTES);
  _mm_setcsr(kept);
}

void tile_tdpbf16ps(uint8_t c, uint8_t a, uint8_t b) {
  State *s = product("tdpbf16ps", c, a, b);
  if (s) halves(s, c, a, b, of_bf16);
}

void tile_tdpfp16ps(uint8_t c, uint8_t a, uint8_t b) {
  State *s = product("tdpfp16ps", c, a, b);
  if (s) halves(s, c, a, b, of_fp16);
}

#define INTEGERS(NAME, A, B)                                                                       \
  void tile_##NAME(uint8_t c, uint8_t a, uint8_t b) {                                              \
    State *s = product(#NAME, c, a, b);                                                            \
    if (!s) return;                                                                                \
    for (int m = 0; m < s->rows[c]; ++m) {                                                         \
      uint32_t sums[16]; /* they wrap around */                                                    \
      memcpy(sums, s->data[c][m], BYTES);                                                          \
      for (int k = 0; k < s->rows[b]; ++k) {                                                       \
        for (int n = 0; n < 16; ++n) {                                                             \
          for (int i = 0; i < 4; ++i) {                                                            \
            sums[n] += (uint32_t)((A)s->data[a][m][4 * k + i] * (B)s->data[b][k][4 * n + i]);      \
          }                                                                                        \
        }                                                                                          \
      }                                                                                            \
      memcpy(s->data[c][m], sums, s->colsb[c]);                                                    \
    }                                                                                              \
    memset(s->data[c][s->rows[c]], 0, (ROWS - s->rows[c]) * BYTES);                                \
  }
INTEGERS(tdpbssd, int8_t, int8_t)
INTEGERS(tdpbsud, int8_t, uint8_t)
INTEGERS(tdpbusd, uint8_t, int8_t)
INTEGERS(tdpbuud, uint8_t, uint8_t)
