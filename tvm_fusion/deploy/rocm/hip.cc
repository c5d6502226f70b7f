#include "hip.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdlib>
#include <mutex>
#include <vector>

namespace tvm_fusion {
namespace rocm {
namespace {

// ROCm 7's and 6's runtime, then what a development package links.
constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

void* OpenLibrary() {
  // Two copies in one process would not know of each other's memory: what is there already comes first.
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  const char* root = std::getenv("ROCM_PATH");
  std::vector<std::string> paths;
  if (root && *root) paths.push_back(std::string(root) + "/lib/libamdhip64.so");
  paths.insert(paths.end(), std::begin(kNames), std::end(kNames));
  paths.push_back("/opt/rocm/lib/libamdhip64.so");
  std::string reason;
  for (const std::string& path : paths) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW)) return library;
    if (reason.empty()) reason = dlerror();
  }
  Fail("HIP's runtime library does not load (" + reason + "); expected libamdhip64.so of ROCm 6.3 or newer; " +
       "install ROCm, or name its folder by the environment variable ROCM_PATH.");
}

Hip Open() {
  void* library = OpenLibrary();
  Hip hip;
  auto find = [library](const char* name) {
    void* symbol = dlsym(library, name);
    if (!symbol) {
      Fail("HIP's runtime library has no " + std::string(name) + "; expected that of ROCm 6.3 or newer; update ROCm.");
    }
    return symbol;
  };
#define TVM_FUSION_FIND(name, parameters) hip.name = reinterpret_cast<decltype(hip.name)>(find(#name));
  TVM_FUSION_HIP_FUNCTIONS(TVM_FUSION_FIND)
#undef TVM_FUSION_FIND
  hip.hipGetErrorString = reinterpret_cast<decltype(hip.hipGetErrorString)>(find("hipGetErrorString"));
  int version = 0;  // major * 10,000,000 + minor * 100,000 + patch
  hip.hipRuntimeGetVersion(&version);
  hip.version = version / 10000000 * 100 + version / 100000 % 100;
  if (hip.version < kOldestMajor * 100 + kOldestMinor) {
    Fail("ROCm " + std::to_string(hip.version / 100) + "." + std::to_string(hip.version % 100) +
         " is installed; expected 6.3 or newer, which reads code objects of version 6; update ROCm.");
  }
  return hip;
}

std::string Megabytes(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

void Fail(const std::string& sentence) { throw tvm::ffi::Error("UserError", sentence, ""); }

const Hip& GetHip() {
  static std::mutex mutex;
  static const Hip* hip = nullptr;  // never deleted: destructors of other libraries still call it
  std::lock_guard<std::mutex> lock(mutex);
  if (!hip) hip = new Hip(Open());
  return *hip;
}

std::string Describe(int status) {
  const char* text = GetHip().hipGetErrorString(status);
  return "HIP error " + std::to_string(status) + ": " + (text ? text : "unknown");
}

void Check(int status, const std::string& what) {
  if (status == kSuccess) return;
  std::string found = what + " (" + Describe(status) + ")";
  if (status == kOutOfMemory) {
    size_t free = 0, total = 0;
    GetHip().hipMemGetInfo(&free, &total);
    Fail(found + "; the GPU has " + Megabytes(free) + " free of " + Megabytes(total) +
         "; end other programs that use it, or run smaller inputs.");
  }
  if (status == kNoDevice || status == kInvalidDevice) {
    Fail(found + "; expected an AMD GPU that this process may use; look at /dev/kfd, whose group (render) this " +
         "user must be in, and at the environment variable HIP_VISIBLE_DEVICES.");
  }
  Fail(found + "; expected a launch that ends without an error; set the environment variable AMD_LOG_LEVEL=3, " +
       "with which HIP tells more, and report the model.");
}

std::string Architecture(int device) {
  DeviceProperties properties{};
  Check(GetHip().hipGetDevicePropertiesR0600(&properties, device),
        "GPU " + std::to_string(device) + " does not answer");
  std::string name(properties.arch, strnlen(properties.arch, sizeof(properties.arch)));
  return name.substr(0, name.find(':'));
}

Stream CurrentStream(int device) { return static_cast<Stream>(TVMFFIEnvGetStream(kDLROCM, device)); }

int CurrentDevice() {
  int device = 0;
  Check(GetHip().hipGetDevice(&device), "the current GPU is not known");
  return device;
}

}  // namespace rocm
}  // namespace tvm_fusion
