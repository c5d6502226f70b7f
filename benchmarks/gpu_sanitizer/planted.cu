// Faults that the tools have to find, each in a process of its own.
//   nvcc -arch=sm_90 -lineinfo planted.cu -o planted; planted NAME
//   memcheck             a write behind an array
//   racecheck            shared memory read without a barrier behind the write
//   synccheck            __syncwarp by a thread that its mask leaves out
//   synccheck_mbarrier   arrival at an mbarrier that was not initialised
//   synccheck_divergent  __syncthreads by half of a warp, while the other half goes on
//   initcheck            a read of memory that nothing wrote
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void behind(float* out) { out[threadIdx.x + 1] = 1.0f; }

__global__ void race(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = shared[63 - threadIdx.x];  // no barrier between
}

__global__ void left_out(float* out, unsigned mask) {
  __shared__ float shared[64];
  shared[threadIdx.x] = threadIdx.x;
  if (threadIdx.x % 32 <= 16) __syncwarp(mask);  // the mask has 16 threads
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

__global__ void no_init(float* out) {
  __shared__ alignas(8) unsigned long long barrier;
  unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(place) : "memory");
  out[threadIdx.x] = threadIdx.x;
}

__global__ void divergent(float* out, int from) {
  __shared__ float shared[64];
  shared[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < from; i += blockDim.x) {  // 48 of 64 threads come again
    shared[i % 64] += i;
    __syncthreads();
  }
  out[threadIdx.x] = shared[63 - threadIdx.x];
}

__global__ void unwritten(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }

int main(int count, char** arguments) {
  float *out, *in;
  cudaMalloc(&out, 64 * sizeof(float));
  cudaMalloc(&in, 64 * sizeof(float));
  const char* name = count > 1 ? arguments[1] : "";
  if (!strcmp(name, "memcheck")) behind<<<1, 64>>>(out);
  if (!strcmp(name, "racecheck")) race<<<1, 64>>>(out);
  if (!strcmp(name, "synccheck")) left_out<<<1, 64>>>(out, 0xffff);
  if (!strcmp(name, "synccheck_mbarrier")) no_init<<<1, 64>>>(out);
  if (!strcmp(name, "synccheck_divergent")) divergent<<<1, 64>>>(out, 112);
  if (!strcmp(name, "initcheck")) unwritten<<<1, 64>>>(out, in);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
