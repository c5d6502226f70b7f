#include "session.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "device.h"
#include "elements.h"
#include "error.h"

namespace tvm_fusion {

namespace ffi = tvm::ffi;

namespace {

bool IsWhole(const std::string& dtype) { return dtype.rfind("int", 0) == 0 || dtype.rfind("uint", 0) == 0; }

ffi::Tensor Zeros(const TensorSpec& spec, DLDevice device) {
  Shape shape;
  for (const Extent& extent : spec.shape) {
    if (!std::holds_alternative<int64_t>(extent)) {
      throw UserError("input '" + spec.name + "' has shape " + ToString(spec.shape) +
                      "; expected caches of fixed shapes; compile with these dimensions bound.");
    }
    shape.push_back(std::get<int64_t>(extent));
  }
  DLDataType dtype = ParseDtype(spec.Held());
  ffi::Tensor tensor = EmptyOnHost(shape, dtype);
  std::memset(tensor.data_ptr(), 0, Bytes(shape, dtype, "input '" + spec.name + "'"));
  return CopyTo(tensor, device);
}

// Whether functions count tokens by a position.
bool HasPosition(const FunctionEntry& entry, const std::string& position) {
  return std::any_of(entry.inputs.begin(), entry.inputs.end(),
                     [&](const TensorSpec& spec) { return spec.name == position; });
}

}  // namespace

Session::Session(Model& model, std::string position) : model_(model), position_(std::move(position)) {
  std::set<std::string> written;
  for (const auto& [name, entry] : model.manifest().functions) {
    written.insert(entry.written.begin(), entry.written.end());
  }
  for (const auto& [name, entry] : model.manifest().functions) {
    for (const TensorSpec& spec : entry.inputs) {
      if (!written.count(spec.name) || caches_.count(spec.name)) continue;
      caches_.emplace(spec.name, Zeros(spec, model.device()));
    }
  }
  if (caches_.empty()) {
    throw UserError("an artifact whose functions write to no inputs; expected caches that are written in place; " +
                    std::string("compile with in_place=NAMES."));
  }
}

void Session::Reset() {
  for (const auto& [name, entry] : model_.manifest().functions) {
    for (const TensorSpec& spec : entry.inputs) {
      // The memory stays: CUDA graphs know it.
      auto found = caches_.find(spec.name);
      if (found == caches_.end()) continue;
      CopyInto(Zeros(spec, DLDevice{kDLCPU, 0}), found->second);
    }
  }
  length_ = 0;
}

NamedTensors Session::Run(const std::string& function, std::map<std::string, ffi::Tensor> inputs) {
  const FunctionEntry& entry = model_.Entry(function);
  const auto& functions = model_.manifest().functions;
  bool has_position = HasPosition(entry, position_);
  bool counts = has_position || std::none_of(functions.begin(), functions.end(), [&](const auto& item) {
                  return HasPosition(item.second, position_);
                });
  int64_t tokens = has_position ? 1 : 0;
  for (const TensorSpec& spec : entry.inputs) {
    auto found = inputs.find(spec.name);
    if (found == inputs.end() || !IsWhole(spec.dtype) || found->second.shape().empty()) continue;
    if (counts) tokens = found->second.shape().back();
    break;
  }
  for (const auto& [name, limit] : entry.limits) {
    if (name == position_) {
      if (length_ + tokens <= limit.below) continue;
      throw UserError(std::to_string(tokens) + " tokens from position " + std::to_string(length_) +
                      "; expected at most " + std::to_string(std::max<int64_t>(0, limit.below - length_)) +
                      ", as there are " + std::to_string(limit.below) + " positions.");
    }
    auto found = inputs.find(name);
    if (found == inputs.end() || found->second.device().device_type != kDLCPU || !limit.IsOfEach()) continue;
    for (double value : Values(found->second, DtypeName(found->second.dtype()))) {
      if (0 <= value && value < static_cast<double>(limit.below)) continue;
      throw UserError("input '" + name + "' holds " + std::to_string(static_cast<int64_t>(value)) +
                      "; expected numbers from 0 to " + std::to_string(limit.below - 1) + ".");
    }
  }
  for (const TensorSpec& spec : entry.inputs) {
    auto cache = caches_.find(spec.name);
    if (cache != caches_.end()) inputs.insert_or_assign(spec.name, cache->second);
    if (spec.name != position_) continue;
    Shape shape;
    for (const Extent& extent : spec.shape) {
      const int64_t* fixed = std::get_if<int64_t>(&extent);
      shape.push_back(fixed ? *fixed : tokens);
    }
    if (spec.dtype != "int64") throw UserError("input '" + position_ + "' is " + spec.dtype + "; expected int64.");
    ffi::Tensor numbers = EmptyOnHost(shape, ParseDtype(spec.dtype));
    int64_t* place = static_cast<int64_t*>(numbers.data_ptr());
    for (int64_t i = 0; i < numbers.numel(); ++i) place[i] = length_ + i;
    inputs.insert_or_assign(position_, numbers);
  }
  NamedTensors outputs;
  for (auto& output : model_.Run(inputs, function)) {
    if (!entry.results_in_place.count(output.first)) outputs.push_back(std::move(output));
  }
  length_ += tokens;
  return outputs;
}

}  // namespace tvm_fusion
