// SHA-256 of files, as manifest.json has it.
#ifndef TVM_FUSION_SHA256_H_
#define TVM_FUSION_SHA256_H_

#include <string>

namespace tvm_fusion {

// Of a file's content, in hexadecimal; throws UserError for a file that cannot be read.
std::string Sha256OfFile(const std::string& path);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_SHA256_H_
