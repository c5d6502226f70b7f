// What this library calls of HIP. Nothing of ROCm is needed to compile it: the functions are declared here, and
// libamdhip64.so is opened when the first of them is called.
#ifndef TVM_FUSION_ROCM_HIP_H_
#define TVM_FUSION_ROCM_HIP_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tvm_fusion {
namespace rocm {

// Opaque handles of hip_runtime_api.h.
using Stream = struct ihipStream_t*;
using Event = struct ihipEvent_t*;
using Module = struct ihipModule_t*;
using Kernel = struct ihipModuleSymbol_t*;
using Graph = struct ihipGraph*;
using GraphExec = struct hipGraphExec*;

// hipError_t: the values that are told apart.
enum Error {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kSharedObjectInitFailed = 303,
  kNotFound = 500,
};

enum CopyKind { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };  // hipMemcpyKind
enum CaptureMode { kThreadLocal = 1 };                                                         // hipStreamCaptureMode
constexpr unsigned kNonBlocking = 1;    // of hipStreamCreateWithFlags
constexpr unsigned kDisableTiming = 2;  // of hipEventCreateWithFlags
constexpr int kOldestMajor = 6, kOldestMinor = 3;  // the first ROCm that reads code objects of version 6

// hipDeviceProp_tR0600, whose size and offsets stay the same from ROCm 6 on; only what is read has a name.
struct DeviceProperties {
  char name[256];
  char reserved_0[32];
  size_t global_memory;
  size_t shared_memory;
  int registers;
  int lanes;
  size_t reserved_1;
  int reserved_2;
  int threads[3];
  int grid[3];
  int clock_khz;
  size_t reserved_3;
  int major, minor;
  size_t reserved_4[2];
  int reserved_5;
  int multiprocessors;
  char reserved_6[224];
  int l2_bytes;
  char reserved_7[540];
  char arch[256];
  char reserved_8[56];
};
static_assert(offsetof(DeviceProperties, global_memory) == 288 && offsetof(DeviceProperties, clock_khz) == 348 &&
                  offsetof(DeviceProperties, multiprocessors) == 388 && offsetof(DeviceProperties, l2_bytes) == 616 &&
                  offsetof(DeviceProperties, arch) == 1160 && sizeof(DeviceProperties) == 1472,
              "HIP's layout");

#define TVM_FUSION_HIP_FUNCTIONS(F)                                                                              \
  F(hipEventCreateWithFlags, (Event*, unsigned))                                                                 \
  F(hipEventDestroy, (Event))                                                                                    \
  F(hipEventElapsedTime, (float*, Event, Event))                                                                 \
  F(hipEventRecord, (Event, Stream))                                                                             \
  F(hipEventSynchronize, (Event))                                                                                \
  F(hipFree, (void*))                                                                                            \
  F(hipGetDevice, (int*))                                                                                        \
  F(hipGetDeviceCount, (int*))                                                                                   \
  F(hipGetDevicePropertiesR0600, (DeviceProperties*, int))                                                       \
  F(hipGraphDestroy, (Graph))                                                                                    \
  F(hipGraphExecDestroy, (GraphExec))                                                                            \
  F(hipGraphInstantiate, (GraphExec*, Graph, void*, char*, size_t))                                              \
  F(hipGraphLaunch, (GraphExec, Stream))                                                                         \
  F(hipHostFree, (void*))                                                                                        \
  F(hipHostMalloc, (void**, size_t, unsigned))                                                                   \
  F(hipMalloc, (void**, size_t))                                                                                 \
  F(hipMemGetInfo, (size_t*, size_t*))                                                                           \
  F(hipMemcpyAsync, (void*, const void*, size_t, CopyKind, Stream))                                              \
  F(hipMemcpyPeerAsync, (void*, int, const void*, int, size_t, Stream))                                          \
  F(hipModuleGetFunction, (Kernel*, Module, const char*))                                                        \
  F(hipModuleLaunchKernel,                                                                                       \
    (Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))       \
  F(hipModuleLoadData, (Module*, const void*))                                                                   \
  F(hipModuleUnload, (Module))                                                                                   \
  F(hipRuntimeGetVersion, (int*))                                                                                \
  F(hipSetDevice, (int))                                                                                         \
  F(hipStreamBeginCapture, (Stream, CaptureMode))                                                                \
  F(hipStreamCreateWithFlags, (Stream*, unsigned))                                                               \
  F(hipStreamDestroy, (Stream))                                                                                  \
  F(hipStreamEndCapture, (Stream, Graph*))                                                                       \
  F(hipStreamSynchronize, (Stream))                                                                              \
  F(hipStreamWaitEvent, (Stream, Event, unsigned))

struct Hip {
#define TVM_FUSION_DECLARE(name, parameters) int(*name) parameters = nullptr;
  TVM_FUSION_HIP_FUNCTIONS(TVM_FUSION_DECLARE)
#undef TVM_FUSION_DECLARE
  const char* (*hipGetErrorString)(int) = nullptr;
  int version = 0;  // major * 100 + minor
};

// HIP's functions. Throws where ROCm is not installed, or too old; the next call tries again.
const Hip& GetHip();

// Throws an error of the kind "UserError", which Python and the runner show as one sentence.
[[noreturn]] void Fail(const std::string& sentence);

// Throws unless HIP succeeded; `what` is what did not work.
void Check(int status, const std::string& what);

// "HIP error 2: out of memory".
std::string Describe(int status);

// The name of a device's architecture, such as gfx942, without what is behind it in HIP's (:sramecc+:xnack-).
std::string Architecture(int device);

// The stream on which this thread launches kernels for a device.
Stream CurrentStream(int device);

// The device of this thread.
int CurrentDevice();

}  // namespace rocm
}  // namespace tvm_fusion

#endif  // TVM_FUSION_ROCM_HIP_H_
