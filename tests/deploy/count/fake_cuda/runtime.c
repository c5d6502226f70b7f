/* A stand-in for libcudart.so.13: device memory is zeroed host memory, streams do nothing, copies and
 * graphs are counted. It has the functions that TVM's CUDA runtime imports. */
#define _GNU_SOURCE
#include "counters.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* cudaDeviceAttr values that TVM reads; the others are reported as 1024. */
enum {
  MAX_SHARED_MEMORY_PER_BLOCK = 8,
  WARP_SIZE = 10,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
};

static const size_t kMemory = (size_t)1 << 34;

int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaGetDevice(int *device) { return *device = 0, 0; }
int cudaSetDevice(int device) { return (void)device, 0; }
int cudaGetDeviceProperties(void *properties, int device) {
  return (void)properties, (void)device, 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case WARP_SIZE: *value = 32; break;
    case COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    default: *value = 1024;
  }
  return 0;
}

/* Memory that ends where nobody may read or write, and begins behind such a page; of large numbers. */
static void *fake_guarded(size_t size) {
  size_t page = 1 << 16, rounded = (size + 15) / 16 * 16, whole = (rounded + page) / page * page;
  char *found = mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED || mprotect(found + page, whole, PROT_READ | PROT_WRITE)) return NULL;
  memset(found + page, 0x7e, whole);
  return found + page + whole - rounded;
}

int cudaMalloc(void **memory, size_t size) {
  if (fake_guards) return (*memory = fake_guarded(size)) ? 0 : 2;
  size_t rounded = (size + 511) / 256 * 256;
  *memory = aligned_alloc(256, rounded);
  if (!*memory) return 2; /* cudaErrorMemoryAllocation */
  memset(*memory, 0, rounded);
  return 0;
}

int cudaMallocHost(void **memory, size_t size) { return cudaMalloc(memory, size); }
int cudaFree(void *memory) {
  if (!fake_guards) free(memory);
  return 0;
}
int cudaFreeHost(void *memory) { return cudaFree(memory); }
int cudaMemGetInfo(size_t *available, size_t *total) { return *available = *total = kMemory, 0; }

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  (void)kind, (void)stream;
  memcpy(to, from, size);
  fake_record_copy();
  return 0;
}

int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                        void *stream) {
  (void)to_device, (void)from_device;
  return cudaMemcpyAsync(to, from, size, 0, stream);
}

int cudaStreamCreate(void **stream) { return *stream = &fake_counters, 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
  return (void)flags, cudaStreamCreate(stream);
}
int cudaStreamDestroy(void *stream) { return (void)stream, 0; }
int cudaStreamSynchronize(void *stream) { return (void)stream, 0; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, 0;
}

int cudaStreamBeginCapture(void *stream, int mode) {
  (void)stream, (void)mode;
  fake_capture = calloc(1, sizeof *fake_capture);
  fake_counters.captures++;
  return fake_capture ? 0 : 2;
}

int cudaStreamEndCapture(void *stream, void **graph) {
  (void)stream;
  *graph = fake_capture;
  fake_capture = NULL;
  return 0;
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
  (void)flags;
  struct fake_graph *copy = malloc(sizeof *copy);
  if (!copy) return 2;
  *copy = *(struct fake_graph *)graph;
  *executable = copy;
  return 0;
}

int cudaGraphLaunch(void *executable, void *stream) {
  (void)stream;
  const struct fake_graph *graph = executable;
  fake_counters.graph_launches++;
  fake_counters.host_launches++;
  fake_counters.kernels += graph->kernels;
  fake_counters.copies += graph->copies;
  return 0;
}

int cudaGraphDestroy(void *graph) { return free(graph), 0; }
int cudaGraphExecDestroy(void *executable) { return free(executable), 0; }

/* An event is a time: a microsecond for each launch of the host before it, and for each event. */
static long fake_events;
int cudaEventCreateWithFlags(void **event, unsigned flags) {
  return (void)flags, (*event = calloc(1, sizeof(long))) ? 0 : 2;
}
int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void *event) { return free(event), 0; }
int cudaEventRecord(void *event, void *stream) {
  return (void)stream, *(long *)event = fake_counters.host_launches + ++fake_events, 0;
}
int cudaEventSynchronize(void *event) { return (void)event, 0; }
int cudaEventElapsedTime(float *milliseconds, void *from, void *to) {
  return *milliseconds = (*(long *)to - *(long *)from) * 1e-3f, 0;
}
int cudaMemsetAsync(void *memory, int value, size_t size, void *stream) {
  return (void)stream, memset(memory, value, size), 0;
}

int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorName(int error) { return (void)error, "none"; }
const char *cudaGetErrorString(int error) { return (void)error, "none"; }
