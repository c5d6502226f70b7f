#include "device.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "error.h"

namespace tvm_fusion {
namespace {

namespace ffi = tvm::ffi;

constexpr int kExists = 0, kComputeVersion = 4, kGcnArch = 10;  // TVM's DeviceAttrKind

ffi::Function Global(const std::string& name) { return ffi::Function::GetGlobalRequired(name); }

// Instruction sets of this CPU by Linux's names.
std::set<std::string> CpuFlags() {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  return flags;
}

// Asks Linux for AMX's tile registers, as tvm_fusion/device/tile_permission.py does. Returns why this process
// may not use them; nothing if it may.
std::string RefusedTiles() {
#ifdef __x86_64__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
  return std::strerror(errno);
#else
  return "no such registers";
#endif
}

bool NeedsTiles(const std::string& flag) { return flag.rfind("amx_", 0) == 0; }

// The highest architecture whose instruction sets this CPU and this process have: as Python's _choose_cpu().
std::string ChooseCpu(const Target& target) {
  utsname here{};
  uname(&here);
  if (!target.machine.empty() && target.machine != here.machine) {
    throw UserError("the artifact is made for " + target.text + " (" + target.machine + "); this machine is " +
                    here.machine + ": compile it for that.");
  }
  std::set<std::string> flags = CpuFlags();
  std::string lacking, refused;
  for (auto arch = target.archs.rbegin(); arch != target.archs.rend(); ++arch) {
    lacking.clear();
    auto entry = target.cpuinfo.find(*arch);
    std::vector<std::string> needed = entry == target.cpuinfo.end() ? std::vector<std::string>() : entry->second;
    bool tiles = std::any_of(needed.begin(), needed.end(), NeedsTiles);
    for (const std::string& flag : needed) {
      // Without /proc, as in a bare root, nothing is known.
      if (!flags.empty() && !flags.count(flag)) lacking += (lacking.empty() ? "" : ", ") + flag;
    }
    if (!lacking.empty()) continue;
    if (tiles && refused.empty()) refused = RefusedTiles();
    if (!tiles || refused.empty()) return *arch;
  }
  if (!refused.empty()) {
    throw UserError("the artifact is made for " + target.text + " with AMX, whose tile registers this process " +
                    "may not use (" + refused + "): run it on Linux 5.16 or later, where no sandbox forbids " +
                    "arch_prctl, or compile it for a CPU without AMX, such as cpu:x86-64-v4.");
  }
  throw UserError("the artifact is made for " + target.text + "; this CPU is without " + lacking +
                  ": compile it for this machine.");
}

struct Architecture {
  int major = 0, minor = 0;
  std::string variant;  // "a" or "f": code for exactly this device
};

Architecture Parse(const std::string& arch) {
  std::smatch match;
  if (!std::regex_match(arch, match, std::regex("sm_([0-9]{1,3})([0-9])([af]?)"))) {
    throw UserError("unknown architecture '" + arch + "' in manifest.json.");
  }
  return {std::stoi(match[1]), std::stoi(match[2]), match[3]};
}

// The device's own architecture, or else the highest that runs there: as Python's choose_arch().
std::string ChooseArch(const Target& target, const std::string& version) {
  Architecture device = Parse("sm_" + std::regex_replace(version, std::regex("\\."), ""));
  std::string best, own;
  for (const std::string& name : target.archs) {
    Architecture arch = Parse(name);
    bool is_exact = arch.major == device.major && arch.minor == device.minor;
    bool runs = arch.variant.empty() ? arch.major == device.major && arch.minor <= device.minor : is_exact;
    if (runs) best = name;
    if (is_exact && !arch.variant.empty()) own = name;
  }
  if (best.empty()) {
    throw UserError("the artifact is made for " + target.text + "; this device has compute capability " +
                    version + ": compile it for that.");
  }
  return own.empty() ? best : own;
}

// The first AMD GPU; its own architecture alone runs there.
std::pair<DLDevice, std::string> OpenAmdGpu(const Target& target) {
  DLDevice device{kDLROCM, 0};
  std::string arch;
  try {
    ffi::Any found = Global("runtime.GetDeviceAttr")(static_cast<int>(device.device_type), 0, kGcnArch);
    arch = found.cast<ffi::String>();
  } catch (const ffi::Error& error) {
    throw UserError("the artifact is made for " + target.text + ", but " + error.message());
  }
  if (std::find(target.archs.begin(), target.archs.end(), arch) == target.archs.end()) {
    throw UserError("the artifact is made for " + target.text + "; this device is " + arch + ": compile it for that.");
  }
  return {device, arch};
}

}  // namespace

std::pair<DLDevice, std::string> OpenDevice(const Target& target) {
  if (target.kind == "llvm") {
    return {DLDevice{kDLCPU, 0}, ChooseCpu(target)};
  }
  if (target.kind == "rocm") return OpenAmdGpu(target);
  if (target.kind != "cuda") {
    throw UserError("the artifact is made for " + target.text + "; this runner knows CPUs, CUDA devices and AMD GPUs.");
  }
  if (!dlopen("libtvm_runtime_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
    throw UserError("the artifact is made for " + target.text + ", and CUDA's runtime does not load (" +
                    dlerror() + "): run it where an NVIDIA driver is.");
  }
  DLDevice device{kDLCUDA, 0};
  ffi::Function attribute = Global("runtime.GetDeviceAttr");
  ffi::Any exists = attribute(static_cast<int>(device.device_type), device.device_id, kExists);
  if (!exists.try_cast<int>().value_or(0)) {
    throw UserError("the artifact is made for " + target.text + "; this machine shows no CUDA device.");
  }
  ffi::Any version = attribute(static_cast<int>(device.device_type), device.device_id, kComputeVersion);
  return {device, ChooseArch(target, version.cast<ffi::String>())};
}

void OpenLibraries(const Manifest& manifest) {
  for (const std::string& name : manifest.libraries) {
    if (name != "tvm_runtime_extra") throw UserError("manifest.json names the unknown library '" + name + "'.");
    if (!dlopen("libtvm_runtime_extra.so", RTLD_NOW | RTLD_GLOBAL)) {
      throw UserError("the artifact needs libtvm_runtime_extra.so, which does not load (" +
                      std::string(dlerror()) + "): copy it next to libtvm_runtime.so.");
    }
  }
  for (const std::string& name : manifest.packed_functions) {
    if (!ffi::Function::GetGlobal(name).has_value()) {
      throw UserError("the artifact calls the packed function '" + name + "', which this program does not " +
                      "have: register it before the artifact is loaded.");
    }
  }
}

ffi::Tensor CopyTo(const ffi::Tensor& tensor, DLDevice device) {
  DLDevice here = tensor.device();
  if (here.device_type == device.device_type && here.device_id == device.device_id) return tensor;
  ffi::Any copy = Global("runtime.TVMTensorAllocWithScope")(ffi::Shape(tensor.shape()), tensor.dtype(), device, nullptr);
  Global("runtime.TVMTensorCopyFromTo")(tensor, copy);
  return copy.cast<ffi::Tensor>();
}

bool IsSentence(const ffi::Error& error) { return error.kind() == "UserError"; }

void CopyInto(const ffi::Tensor& tensor, const ffi::Tensor& target) {
  Global("runtime.TVMTensorCopyFromTo")(tensor, target);
}

void Synchronize(DLDevice device) {
  if (device.device_type != kDLCPU) Global("runtime.Device_StreamSync")(device, int64_t{0});
}

}  // namespace tvm_fusion
