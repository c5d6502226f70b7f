// TVM's timer for AMD GPUs: events on the stream of the kernels.
#include <tvm/runtime/timer.h>

#include "hip.h"
#include "registry.h"

namespace tvm_fusion {
namespace rocm {
namespace {

namespace ffi = tvm::ffi;

class HipTimerNode final : public tvm::runtime::TimerNode {
 public:
  HipTimerNode() {
    for (Event* event : {&begin_, &end_}) {
      Check(GetHip().hipEventCreateWithFlags(event, 0), "an event was not created");
    }
  }
  ~HipTimerNode() {
    for (Event event : {begin_, end_}) {
      if (event) GetHip().hipEventDestroy(event);
    }
  }

  void Start() final { Record(begin_); }
  void Stop() final { Record(end_); }

  int64_t SyncAndGetElapsedNanos() final {
    float milliseconds = 0;
    Check(GetHip().hipEventSynchronize(end_), "what was launched on the GPU failed");
    Check(GetHip().hipEventElapsedTime(&milliseconds, begin_, end_), "the time of kernels is not known");
    return static_cast<int64_t>(milliseconds * 1e6);
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_fusion.HipTimer", HipTimerNode, TimerNode);

 private:
  static void Record(Event event) {
    Check(GetHip().hipEventRecord(event, CurrentStream(CurrentDevice())), "an event was not recorded");
  }

  Event begin_ = nullptr, end_ = nullptr;
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  auto make = [](ffi::PackedArgs, ffi::Any* result) {
    *result = tvm::runtime::Timer(ffi::make_object<HipTimerNode>());
  };
  Register("runtime.timer.rocm", ffi::Function::FromPacked(make));
}

}  // namespace rocm
}  // namespace tvm_fusion
