// AMD GPUs as devices of TVM's runtime: attributes, memory, copies, streams.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>

#include "hip.h"
#include "registry.h"

namespace tvm_fusion {
namespace rocm {
namespace {

namespace ffi = tvm::ffi;
using tvm::Device;
using tvm::runtime::DeviceAttrKind;

// What TVM's code generator lets a block have, unless a device in the process tells it otherwise. Kernels have no
// more threads, and with a higher limit LLVM leaves each of them fewer registers: code must not depend on whether
// an artifact was loaded before.
constexpr int kThreadsPerBlock = 256;
constexpr size_t kAlignment = 256;  // of hipMalloc

bool Exists(int device) {
  try {
    int count = 0;
    return GetHip().hipGetDeviceCount(&count) == kSuccess && device < count;
  } catch (const ffi::Error&) {
    return false;
  }
}

class RocmDeviceApi final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(Device device) final {
    Check(GetHip().hipSetDevice(device.device_id), "GPU " + std::to_string(device.device_id) + " cannot be used");
  }

  void GetAttr(Device device, DeviceAttrKind kind, ffi::Any* result) final {
    if (kind == DeviceAttrKind::kExist) {
      *result = static_cast<int>(Exists(device.device_id));
      return;
    }
    if (kind == DeviceAttrKind::kApiVersion) {
      *result = GetHip().version;
      return;
    }
    if (kind == DeviceAttrKind::kAvailableGlobalMemory) {
      size_t free = 0, total = 0;
      SetDevice(device);
      Check(GetHip().hipMemGetInfo(&free, &total), "the GPU's free memory is not known");
      *result = static_cast<int64_t>(free);
      return;
    }
    DeviceProperties found{};
    Check(GetHip().hipGetDevicePropertiesR0600(&found, device.device_id),
          "GPU " + std::to_string(device.device_id) + " does not answer");
    switch (kind) {
      case DeviceAttrKind::kMaxThreadsPerBlock:
        *result = kThreadsPerBlock;
        break;
      case DeviceAttrKind::kWarpSize:
        *result = found.lanes;
        break;
      case DeviceAttrKind::kMaxSharedMemoryPerBlock:
        *result = static_cast<int64_t>(found.shared_memory);
        break;
      case DeviceAttrKind::kComputeVersion:
        *result = ffi::String(std::to_string(found.major) + "." + std::to_string(found.minor));
        break;
      case DeviceAttrKind::kDeviceName:
        *result = ffi::String(std::string(found.name, strnlen(found.name, sizeof(found.name))));
        break;
      case DeviceAttrKind::kMaxClockRate:
        *result = found.clock_khz;
        break;
      case DeviceAttrKind::kMultiProcessorCount:
        *result = found.multiprocessors;
        break;
      case DeviceAttrKind::kMaxThreadDimensions:
        *result = ffi::String("[" + std::to_string(found.threads[0]) + ", " + std::to_string(found.threads[1]) + ", " +
                              std::to_string(found.threads[2]) + "]");
        break;
      case DeviceAttrKind::kMaxRegistersPerBlock:
        *result = found.registers;
        break;
      case DeviceAttrKind::kGcnArch:
        *result = ffi::String(Architecture(device.device_id));
        break;
      case DeviceAttrKind::kL2CacheSizeBytes:
        *result = found.l2_bytes;
        break;
      case DeviceAttrKind::kTotalGlobalMemory:
        *result = static_cast<int64_t>(found.global_memory);
        break;
      default:  // of textures, and of drivers that have their own version
        break;
    }
  }

  void* AllocDataSpace(Device device, size_t bytes, size_t alignment, DLDataType) final {
    TVM_FFI_ICHECK(kAlignment % alignment == 0) << "memory of a GPU is aligned to " << kAlignment << " bytes";
    void* data = nullptr;
    std::string what = std::to_string(bytes) + " bytes were not allocated";
    if (device.device_type == kDLROCMHost) {
      Check(GetHip().hipHostMalloc(&data, bytes, 0), what);
    } else {
      SetDevice(device);
      Check(GetHip().hipMalloc(&data, bytes), what);
    }
    return data;
  }

  // Called by destructors, also when the process ends or a kernel has failed: there is nobody to tell.
  void FreeDataSpace(Device device, void* data) final {
    const Hip& hip = GetHip();
    if (device.device_type == kDLROCMHost) {
      hip.hipHostFree(data);
    } else if (hip.hipSetDevice(device.device_id) == kSuccess) {
      hip.hipFree(data);
    }
  }

  TVMStreamHandle CreateStream(Device device) final {
    Stream stream = nullptr;
    SetDevice(device);
    Check(GetHip().hipStreamCreateWithFlags(&stream, kNonBlocking), "a stream was not created");
    return stream;
  }

  void FreeStream(Device device, TVMStreamHandle stream) final {
    SetDevice(device);
    Check(GetHip().hipStreamDestroy(static_cast<Stream>(stream)), "a stream was not destroyed");
  }

  void StreamSync(Device device, TVMStreamHandle stream) final {
    SetDevice(device);
    Check(GetHip().hipStreamSynchronize(On(device, stream)), "what was launched on the GPU failed");
  }

  void SyncStreamFromTo(Device device, TVMStreamHandle from, TVMStreamHandle to) final {
    const Hip& hip = GetHip();
    SetDevice(device);
    Event event = nullptr;
    Check(hip.hipEventCreateWithFlags(&event, kDisableTiming), "an event was not created");
    int status = hip.hipEventRecord(event, static_cast<Stream>(from));
    if (status == kSuccess) status = hip.hipStreamWaitEvent(static_cast<Stream>(to), event, 0);
    hip.hipEventDestroy(event);  // HIP keeps it until it has happened
    Check(status, "one stream cannot wait for the other");
  }

  bool SupportsDevicePointerArithmeticsOnHost() final { return true; }

 protected:
  // Copies follow the kernels of their stream. Those to and from the host have ended when this returns.
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t bytes,
                      Device from_device, Device to_device, DLDataType, TVMStreamHandle handle) final {
    if (bytes == 0) return;
    const Hip& hip = GetHip();
    const void* source = static_cast<const char*>(from) + from_offset;
    void* target = static_cast<char*>(to) + to_offset;
    bool reads = from_device.device_type == kDLROCM, writes = to_device.device_type == kDLROCM;
    Device device = reads ? from_device : to_device;
    SetDevice(device);
    Stream stream = On(device, handle);
    if (reads && writes && from_device.device_id != to_device.device_id) {
      Check(hip.hipMemcpyPeerAsync(target, to_device.device_id, source, from_device.device_id, bytes, stream),
            "memory was not copied from GPU to GPU");
      return;
    }
    CopyKind kind = reads ? (writes ? kDeviceToDevice : kDeviceToHost) : (writes ? kHostToDevice : kHostToHost);
    Check(hip.hipMemcpyAsync(target, source, bytes, kind, stream), "memory was not copied");
    if (kind != kDeviceToDevice) Check(hip.hipStreamSynchronize(stream), "memory was not copied");
  }

 private:
  // TVM's callers that name no stream mean that of the kernels.
  static Stream On(Device device, TVMStreamHandle stream) {
    return stream ? static_cast<Stream>(stream) : CurrentStream(device.device_id);
  }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  auto get = ffi::Function::FromPacked([](ffi::PackedArgs, ffi::Any* result) {
    static RocmDeviceApi* api = new RocmDeviceApi();  // TVM's runtime keeps the pointer to the end
    *result = static_cast<void*>(api);
  });
  Register("device_api.rocm", get);
  Register("device_api.rocm_host", get);
}

}  // namespace rocm
}  // namespace tvm_fusion
