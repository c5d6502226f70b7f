// Devices: whether an artifact's code runs here, and memory on them.
#ifndef TVM_FUSION_DEVICE_H_
#define TVM_FUSION_DEVICE_H_

#include <tvm/ffi/tvm_ffi.h>

#include <string>
#include <utility>

#include "manifest.h"

namespace tvm_fusion {

// Opens a target's device and chooses the architecture whose code runs best there.
// Throws UserError if none does.
std::pair<DLDevice, std::string> OpenDevice(const Target& target);

// Loads TVM's libraries that an artifact names.
// Throws UserError where one is missing, or a packed function is registered nowhere.
void OpenLibraries(const Manifest& manifest);

// Copies a contiguous tensor to another device; the tensor itself where it is there already.
tvm::ffi::Tensor CopyTo(const tvm::ffi::Tensor& tensor, DLDevice device);

// Copies a contiguous tensor into another of the same shape and type.
void CopyInto(const tvm::ffi::Tensor& tensor, const tvm::ffi::Tensor& target);

void Synchronize(DLDevice device);

// Whether an error's message is one sentence for the user: those of libraries with code for AMD GPUs are.
bool IsSentence(const tvm::ffi::Error& error);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_DEVICE_H_
