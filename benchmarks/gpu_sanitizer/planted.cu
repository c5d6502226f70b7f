// Faults that the tools have to find: a write behind an array, a race, a barrier of half a warp's threads.
//   nvcc -arch=sm_90 -lineinfo planted.cu -o planted; planted memcheck|racecheck|synccheck
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void behind(float* out) { out[threadIdx.x + 1] = 1.0f; }

__global__ void race(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = shared[63 - threadIdx.x];  // no barrier between
}

__global__ void half_barrier(float* out) {
  if (threadIdx.x < 48) __syncthreads();
  out[threadIdx.x] = threadIdx.x;
}

int main(int count, char** arguments) {
  float* out;
  cudaMalloc(&out, 64 * sizeof(float));
  const char* tool = count > 1 ? arguments[1] : "";
  if (!strcmp(tool, "memcheck")) behind<<<1, 64>>>(out);
  if (!strcmp(tool, "racecheck")) race<<<1, 64>>>(out);
  if (!strcmp(tool, "synccheck")) half_barrier<<<1, 64>>>(out);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
