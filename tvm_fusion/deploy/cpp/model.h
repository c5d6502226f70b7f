// A compiled model in C++: load an artifact, call it with tensors by name.
#ifndef TVM_FUSION_MODEL_H_
#define TVM_FUSION_MODEL_H_

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "manifest.h"

namespace tvm_fusion {

using NamedTensors = std::vector<std::pair<std::string, tvm::ffi::Tensor>>;

// Not for calls of several threads at a time: load one Model for each; the weights' pages are shared.
class Model {
 public:
  // Loads a folder that `tvm-fusion compile` wrote. Throws UserError for a damaged artifact or one made
  // for another device.
  explicit Model(const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  DLDevice device() const { return device_; }

  // `main`, or else the first function.
  std::string MainFunction() const;
  const FunctionEntry& Entry(const std::string& function) const;

  // Runs a function on contiguous tensors of the dtypes that TensorSpec::Held says, copied to the
  // device where they are not there yet; an input that the model writes to is written to where it is
  // on the device already. Returns the outputs in the model's order, on the device, of those dtypes,
  // too. Throws UserError for wrong names, shapes and dtypes.
  NamedTensors Run(const std::map<std::string, tvm::ffi::Tensor>& inputs, const std::string& function = "main");

  void Synchronize() const;

 private:
  Manifest manifest_;
  DLDevice device_;
  tvm::ffi::Optional<tvm::ffi::Module> library_, machine_;
  std::map<std::string, tvm::ffi::Tensor> weights_;  // on the device
};

// The extents of all symbolic dimensions that the inputs' shapes name.
// Throws UserError at the first input that does not fit its specification.
Extents CheckInputs(const std::vector<TensorSpec>& specs, const std::map<std::string, tvm::ffi::Tensor>& inputs,
                    const std::map<std::string, DimRange>& dims);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_MODEL_H_
