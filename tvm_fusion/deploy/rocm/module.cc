// Code objects of AMD GPUs: modules of kernels that TVM's host code calls.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "hip.h"
#include "registry.h"

namespace tvm_fusion {
namespace rocm {
namespace {

namespace ffi = tvm::ffi;

constexpr size_t kMostArgumentBytes = 4096;
constexpr unsigned kMostBits = 64;

// Keys of hipModuleLaunchKernel's list `extra`.
void* const kArguments = reinterpret_cast<void*>(1);
void* const kArgumentBytes = reinterpret_cast<void*>(2);
void* const kEnd = reinterpret_cast<void*>(3);

[[noreturn]] void Damaged(const std::string& what) {
  Fail("the AMD code of model.so is damaged (" + what + "); expected what the compiler wrote; compile the model " +
       "again, or copy the whole folder again.");
}

// A kernel's parameters and what follows them in a call: the extents of its launch.
struct Signature {
  struct Parameter {
    DLDataType type;
    size_t offset;
  };
  std::string name;
  std::vector<Parameter> parameters;
  size_t bytes = 0;
  std::vector<int> extents;  // positions in grid x, y, z, block x, y, z, dynamic shared memory
};

// Reads what TVM's compiler writes of a module.
class Reader {
 public:
  Reader(const char* data, size_t size) : at_(data), end_(data + size) {}

  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }

  std::string Text() {
    uint64_t size = Number<uint64_t>();
    return std::string(Take(size), size);
  }

  // How many entries follow, of at least a byte each.
  size_t Count() {
    uint64_t count = Number<uint64_t>();
    if (count > static_cast<uint64_t>(end_ - at_)) Damaged("it ends too early");
    return count;
  }

 private:
  const char* Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) Damaged("it ends too early");
    const char* taken = at_;
    at_ += size;
    return taken;
  }

  const char* at_;
  const char* end_;
};

// Parameters lie as in a struct of C.
void AddParameter(Signature* signature, DLDataType type) {
  bool is_known = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool ||
                  (type.code == kDLOpaqueHandle && type.bits == kMostBits) ||
                  (type.code == kDLFloat && (type.bits == 32 || type.bits == 64));
  size_t size = type.bits / 8;
  if (!is_known || type.lanes != 1 || size == 0 || type.bits > kMostBits || (size & (size - 1)) != 0) {
    Damaged("'" + signature->name + "' has a parameter of type " + std::string(ffi::DLDataTypeToString(type)));
  }
  size_t offset = (signature->bytes + size - 1) / size * size;
  signature->parameters.push_back({type, offset});
  signature->bytes = offset + size;
  if (signature->bytes > kMostArgumentBytes) Damaged("'" + signature->name + "' has too many parameters");
}

Signature ReadSignature(Reader* reader) {
  static const std::array<const char*, 7> kExtents = {
      "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z",
      "tirx.use_dyn_shared_memory"};
  Signature signature;
  signature.name = reader->Text();
  for (size_t i = reader->Count(); i > 0; --i) {
    DLDataType type;
    type.code = reader->Number<uint8_t>();
    type.bits = reader->Number<uint8_t>();
    type.lanes = reader->Number<uint16_t>();
    AddParameter(&signature, type);
  }
  for (size_t i = reader->Count(); i > 0; --i) {
    std::string tag = reader->Text();
    size_t place = 0;
    while (place < kExtents.size() && tag != kExtents[place]) ++place;
    if (place == kExtents.size()) Damaged("'" + signature.name + "' is launched with '" + tag + "'");
    signature.extents.push_back(static_cast<int>(place));
  }
  for (size_t i = reader->Count(); i > 0; --i) reader->Number<int32_t>();  // attributes of CUDA's parameters
  return signature;
}

void Pack(const Signature::Parameter& parameter, const TVMFFIAny& value, char* arguments) {
  char* place = arguments + parameter.offset;
  if (parameter.type.code == kDLFloat && parameter.type.bits == 32) {
    float narrow = static_cast<float>(value.v_float64);
    std::memcpy(place, &narrow, sizeof(narrow));
  } else {
    std::memcpy(place, &value.v_int64, parameter.type.bits / 8);  // the low bytes of an integer
  }
}

// The code objects of one architecture. A GPU gets them when the first kernel is launched on it, so that what is
// for other GPUs is never loaded.
class CodeObjects final : public ffi::ModuleObj {
 public:
  explicit CodeObjects(const ffi::Bytes& bytes) {
    Reader reader(bytes.data(), bytes.size());
    std::string format = reader.Text();
    if (format != "hsaco" && format != "hsa") Damaged("it has the format '" + format.substr(0, 40) + "'");
    for (size_t i = reader.Count(); i > 0; --i) {
      std::string key = reader.Text();
      signatures_.emplace(key, ReadSignature(&reader));
    }
    code_ = reader.Text();
  }

  ~CodeObjects() {
    for (const auto& [device, module] : modules_) {
      if (GetHip().hipSetDevice(device) == kSuccess) GetHip().hipModuleUnload(module);
    }
  }

  const char* kind() const final { return "hip"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = signatures_.find(name);
    if (found == signatures_.end()) return std::nullopt;
    ffi::ObjectPtr<CodeObjects> self = ffi::GetObjectPtr<CodeObjects>(this);
    const Signature* signature = &found->second;  // of a map, which does not move its entries
    return ffi::Function::FromPacked([self, signature](ffi::PackedArgs args, ffi::Any*) {
      self->Launch(*signature, args);
    });
  }

 private:
  void Launch(const Signature& signature, ffi::PackedArgs args) {
    size_t count = signature.parameters.size();
    if (static_cast<size_t>(args.size()) != count + signature.extents.size()) {
      Damaged("'" + signature.name + "' is called with " + std::to_string(args.size()) + " values");
    }
    const TVMFFIAny* values = reinterpret_cast<const TVMFFIAny*>(args.data());
    alignas(kMostBits) char arguments[kMostArgumentBytes];
    std::memset(arguments, 0, signature.bytes);  // what lies between them, too
    for (size_t i = 0; i < count; ++i) Pack(signature.parameters[i], values[i], arguments);
    std::array<int64_t, 7> extents = {1, 1, 1, 1, 1, 1, 0};
    for (size_t i = 0; i < signature.extents.size(); ++i) extents[signature.extents[i]] = values[count + i].v_int64;
    auto [gx, gy, gz, bx, by, bz, shared] = extents;
    if (gx == 0 || gy == 0 || gz == 0) return;  // a dimension of the model is empty
    int device = CurrentDevice();
    size_t bytes = signature.bytes;
    void* extra[] = {kArguments, arguments, kArgumentBytes, &bytes, kEnd};
    int status = GetHip().hipModuleLaunchKernel(KernelOn(device, signature), gx, gy, gz, bx, by, bz, shared,
                                                CurrentStream(device), nullptr, extra);
    if (status == kSuccess) return;
    auto three = [](int64_t x, int64_t y, int64_t z) {
      return std::to_string(x) + " x " + std::to_string(y) + " x " + std::to_string(z);
    };
    Check(status, "kernel '" + signature.name + "' was not launched on " + three(gx, gy, gz) + " blocks of " +
                      three(bx, by, bz) + " threads with " + std::to_string(shared) + " bytes of shared memory");
  }

  Kernel KernelOn(int device, const Signature& signature) {
    std::lock_guard<std::mutex> lock(mutex_);
    Kernel& kernel = kernels_[{device, &signature}];
    if (kernel) return kernel;
    const Hip& hip = GetHip();
    Module& module = modules_[device];
    if (!module) {
      int status = hip.hipModuleLoadData(&module, code_.data());
      if (status == kOutOfMemory) Check(status, "a code object of model.so was not loaded");
      if (status != kSuccess) {
        modules_.erase(device);
        Damaged("a code object does not load on this GPU, which is " + Architecture(device) + "; " + Describe(status));
      }
    }
    int status = hip.hipModuleGetFunction(&kernel, module, signature.name.c_str());
    if (status != kSuccess) Damaged("there is no kernel '" + signature.name + "'; " + Describe(status));
    return kernel;
  }

  std::map<std::string, Signature> signatures_;
  std::string code_;
  std::mutex mutex_;
  std::map<int, Module> modules_;  // by device
  std::map<std::pair<int, const Signature*>, Kernel> kernels_;
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  auto load = [](ffi::PackedArgs args, ffi::Any* result) {
    *result = ffi::Module(ffi::make_object<CodeObjects>(args[0].cast<ffi::Bytes>()));
  };
  Register("ffi.Module.load_from_bytes.hip", ffi::Function::FromPacked(load));
}

}  // namespace rocm
}  // namespace tvm_fusion
