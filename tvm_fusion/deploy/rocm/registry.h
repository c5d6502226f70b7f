// What this library adds to TVM's runtime, by name.
#ifndef TVM_FUSION_ROCM_REGISTRY_H_
#define TVM_FUSION_ROCM_REGISTRY_H_

#include <tvm/ffi/function.h>

namespace tvm_fusion {
namespace rocm {

// Registers a global function unless there is one: a process whose TVM has a ROCm runtime, or which has loaded another
// artifact, keeps what it has.
void Register(const char* name, const tvm::ffi::Function& function);

}  // namespace rocm
}  // namespace tvm_fusion

#endif  // TVM_FUSION_ROCM_REGISTRY_H_
