// The weights of an artifact, mapped into memory: pages are read when they are first used.
#ifndef TVM_FUSION_WEIGHTS_H_
#define TVM_FUSION_WEIGHTS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <string>

#include "manifest.h"

namespace tvm_fusion {

// Views of a folder's weights.bin by name; throws UserError where an entry does not lie in the file.
std::map<std::string, tvm::ffi::Tensor> MapWeights(const std::string& folder, const Manifest& manifest);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_WEIGHTS_H_
