/* What peer memory needs of CUDA's runtime: memory of a GPU is a file that other processes map. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int fail_open, freed, closed;
static char name[64];
static size_t bytes;

int cudaMalloc(void **p, size_t size) {
  static int count;
  snprintf(name, sizeof name, "/dev/shm/fake-cuda-%d-%d", getpid(), count++);
  int file = open(name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, bytes = size)) return 2;
  *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return close(file);
}
int cudaMemset(void *p, int value, size_t size) { return memset(p, value, size) != p; }
int cudaMemsetAsync(void *p, int value, size_t size, void *stream) {
  return stream != (void *)5 || cudaMemset(p, value, size);
}
int cudaDeviceSynchronize(void) { return 0; }
int cudaSetDevice(int device) { return device; }
int cudaIpcGetMemHandle(char *handle, void *p) { return !p || strcpy(handle, name) != handle; }
typedef struct { char name[64]; } Handle;
int cudaIpcOpenMemHandle(void **p, Handle handle, unsigned flags) {
  if (fail_open || flags != 1) return 217;
  int file = open(handle.name, O_RDWR);
  *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return close(file);
}
int cudaIpcCloseMemHandle(void *p) { return closed++, munmap(p, bytes); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = (void *)5, flags != 1; }
int cudaFree(void *p) { return freed++, unlink(name), munmap(p, bytes); }
