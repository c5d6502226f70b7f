// What a user can mend: one sentence, exit code 2.
#ifndef TVM_FUSION_ERROR_H_
#define TVM_FUSION_ERROR_H_

#include <sys/stat.h>

#include <stdexcept>
#include <string>

namespace tvm_fusion {

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& sentence) : std::runtime_error(sentence) {}
};

// Whether a path leads to a plain file: pipes and devices never end, or wait for ever.
inline bool IsFile(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace tvm_fusion

#endif  // TVM_FUSION_ERROR_H_
