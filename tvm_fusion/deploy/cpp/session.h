// Functions of a model over one set of caches, which calls write where they lie.
#ifndef TVM_FUSION_SESSION_H_
#define TVM_FUSION_SESSION_H_

#include "model.h"

namespace tvm_fusion {

// Caches are the inputs that some function writes to. Several sessions of one Model share its weights.
class Session {
 public:
  // `position` is the input that says where tokens begin, if functions have it: the session counts it.
  // Throws UserError where no function writes to inputs, or one of them has no fixed shape.
  explicit Session(Model& model, std::string position = "position");

  // Runs a function on its other inputs, such as `input_ids`. Throws UserError as Model::Run does, for
  // more tokens than the caches have room for, and for numbers on the host that are out of range.
  // Returns the outputs that are no caches.
  NamedTensors Run(const std::string& function, std::map<std::string, tvm::ffi::Tensor> inputs);

  // Empties the caches, for another sequence.
  void Reset();

  // Tokens that the caches hold.
  int64_t length() const { return length_; }
  const std::map<std::string, tvm::ffi::Tensor>& caches() const { return caches_; }

 private:
  Model& model_;
  std::string position_;
  std::map<std::string, tvm::ffi::Tensor> caches_;  // on the device
  int64_t length_ = 0;
};

}  // namespace tvm_fusion

#endif  // TVM_FUSION_SESSION_H_
