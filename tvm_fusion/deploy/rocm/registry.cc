#include "registry.h"

namespace tvm_fusion {
namespace rocm {

void Register(const char* name, const tvm::ffi::Function& function) {
  if (!tvm::ffi::Function::GetGlobal(name).has_value()) tvm::ffi::Function::SetGlobal(name, function);
}

}  // namespace rocm
}  // namespace tvm_fusion
