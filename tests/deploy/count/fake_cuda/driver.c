/* A stand-in for libcuda.so.1 that counts launches instead of running kernels. Needs no GPU.
 * It has the functions that TVM's CUDA runtime imports, with the driver API's signatures. */
#include "counters.h"

#include <stdlib.h>
#include <string.h>

struct fake_counters fake_counters;
struct fake_graph *fake_capture;

/* Launches, a line each: a kernel's name and the code of its module, which has to be text. */
static char fake_lines[1 << 16];
static void fake_note(const char *line) {
  if (strlen(fake_lines) + strlen(line) + 1 < sizeof fake_lines)
    strcat(strcat(fake_lines, line), "\n");
}
const char *fake_log(void) { return fake_lines; }

void fake_reset(void) {
  memset(&fake_counters, 0, sizeof fake_counters);
  fake_lines[0] = 0;
}
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

/* What runs in a kernel's place, if a test says so (tests/host_cuda), and whether memory has guards. */
static void (*fake_kernel)(const char *line, const void *config, void **params);
int fake_guards;
void fake_run_kernels(void (*run)(const char *, const void *, void **)) { fake_kernel = run; }
void fake_guard_memory(int on) { fake_guards = on; }

int cuLaunchKernelEx(const void *config, void *function, void **params, void **extra) {
  (void)extra;
  fake_note(function);
  if (fake_kernel && !fake_capture) fake_kernel(function, config, params);
  if (fake_capture)
    fake_capture->kernels++;
  else
    fake_counters.kernels++, fake_counters.host_launches++;
  return 0;
}

int cuModuleLoadData(void **module, const void *image) {
  *module = strdup(image);
  return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  char *line = malloc(strlen(name) + strlen(module) + 2);
  strcpy(line, name), strcat(line, " "), strcat(line, module);
  *function = line;
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
