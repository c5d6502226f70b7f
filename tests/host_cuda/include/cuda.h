/* CUDA C for a compiler of the host: what kernels without barriers and shuffles use. */
#ifndef HOST_CUDA_H_
#define HOST_CUDA_H_

#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct HostIndex {
  unsigned x, y, z;
};
static HostIndex threadIdx, blockIdx, blockDim, gridDim;

#define HOST_VECTORS(T, name)                                                      \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                               \
  struct name##3 { T x, y, z; };                                                   \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }        \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

HOST_VECTORS(signed char, char)
HOST_VECTORS(unsigned char, uchar)
HOST_VECTORS(short, short)
HOST_VECTORS(unsigned short, ushort)
HOST_VECTORS(int, int)
HOST_VECTORS(unsigned int, uint)
HOST_VECTORS(long long, longlong)
HOST_VECTORS(unsigned long long, ulonglong)
HOST_VECTORS(float, float)
HOST_VECTORS(double, double)

/* Of numbers of two types as CUDA's: after C's conversions. */
template <typename A, typename B> static inline auto min(A a, B b) -> decltype(a + b) {
  return a < (decltype(a + b))b ? a : b;
}
template <typename A, typename B> static inline auto max(A a, B b) -> decltype(a + b) {
  return a > (decltype(a + b))b ? a : b;
}

template <typename T> static inline T __ldg(const T *place) { return *place; }

/* Threads run one after the other. */
template <typename T> static inline T atomicAdd(T *place, T value) {
  T old = *place;
  *place = old + value;
  return old;
}

#endif
