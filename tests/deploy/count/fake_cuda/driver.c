/* A stand-in for libcuda.so.1 that counts launches instead of running kernels. Needs no GPU.
 * It has the functions that TVM's CUDA runtime imports, with the driver API's signatures. */
#include "counters.h"

#include <stdlib.h>
#include <string.h>

struct fake_counters fake_counters;
struct fake_graph *fake_capture;

void fake_reset(void) { memset(&fake_counters, 0, sizeof fake_counters); }
long fake_kernels(void) { return fake_counters.kernels; }
long fake_host_launches(void) { return fake_counters.host_launches; }
long fake_copies(void) { return fake_counters.copies; }
long fake_graph_launches(void) { return fake_counters.graph_launches; }
long fake_captures(void) { return fake_counters.captures; }

void fake_record_copy(void) {
  if (fake_capture)
    fake_capture->copies++;
  else
    fake_counters.copies++, fake_counters.host_launches++;
}

int cuLaunchKernelEx(const void *config, void *function, void **params, void **extra) {
  (void)config, (void)function, (void)params, (void)extra;
  if (fake_capture)
    fake_capture->kernels++;
  else
    fake_counters.kernels++, fake_counters.host_launches++;
  return 0;
}

int cuModuleLoadData(void **module, const void *image) {
  (void)image;
  *module = &fake_counters; /* any address but NULL */
  return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)name;
  *function = module;
  return 0;
}

int cuModuleUnload(void *module) { return (void)module, 0; }

int cuFuncSetAttribute(void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "counting stand-in", (size_t)length);
  return 0;
}

int cuGetErrorName(int error, const char **name) { return (void)error, *name = "none", 0; }
int cuGetErrorString(int error, const char **text) { return (void)error, *text = "none", 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
