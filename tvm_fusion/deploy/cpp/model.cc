#include "model.h"

#include <sched.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>

#include "device.h"
#include "elements.h"
#include "error.h"
#include "sha256.h"
#include "weights.h"

namespace tvm_fusion {
namespace {

namespace ffi = tvm::ffi;

constexpr int kPooledAllocator = 2;  // TVM's AllocatorType

// One thread for each physical core that this process may use, tied to none, as in Python; what the
// environment says already stays. TVM reads it when a thread runs its first kernel.
void ChooseThreads() {
  cpu_set_t usable;
  std::set<std::string> cores;
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &usable)) continue;
      std::string siblings = std::to_string(cpu);
      std::ifstream("/sys/devices/system/cpu/cpu" + siblings + "/topology/thread_siblings_list") >> siblings;
      cores.insert(siblings);
    }
  }
  if (!cores.empty() && !std::getenv("OMP_NUM_THREADS")) {
    setenv("TVM_NUM_THREADS", std::to_string(cores.size()).c_str(), 0);
  }
  setenv("TVM_BIND_THREADS", "0", 0);
}

// Lets kernels run on one team of threads for the whole process: that of the first library, which stays
// open. What the environment says is done here as in Python.
void JoinTeam(const ffi::Module& library) {
  static int64_t team = 0;
  static std::mutex mutex;
  const char* pool = std::getenv("TVM_FUSION_THREAD_POOL");
  const char* binds = std::getenv("TVM_BIND_THREADS");
  if ((pool && std::string(pool) == "tvm") || (binds && std::string(binds) == "1")) return;
  ffi::Optional<ffi::Function> join = library->GetFunction("tvm_fusion_thread_team", true);
  if (!join.has_value()) return;
  std::lock_guard<std::mutex> lock(mutex);
  team = join.value()(team).cast<int64_t>();
}

std::string Misfit(const TensorSpec& spec, const Shape& shape) {
  return "input '" + spec.name + "' has shape " + ToString(shape) + "; expected " + ToString(spec.shape);
}

Shape ShapeOf(const ffi::Tensor& tensor) { return Shape(tensor.shape().begin(), tensor.shape().end()); }

void Flatten(const ffi::Any& value, std::vector<ffi::Tensor>* leaves) {
  if (std::optional<ffi::Tensor> tensor = value.try_cast<ffi::Tensor>()) {
    leaves->push_back(*tensor);
    return;
  }
  for (const ffi::Any& item : value.cast<ffi::Array<ffi::Any>>()) Flatten(item, leaves);
}

void CheckRange(const TensorSpec& spec, const std::string& name, int64_t size,
                const std::map<std::string, DimRange>& dims) {
  auto range = dims.find(name);
  if (range == dims.end() || range->second.Holds(size)) return;
  throw UserError("input '" + spec.name + "' has " + name + " = " + std::to_string(size) + "; expected " +
                  range->second.Text() + ".");
}

// Extents that are names alone fix these names.
void BindNames(const TensorSpec& spec, const Shape& shape, const std::map<std::string, DimRange>& dims,
               Extents* extents) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!IsName(spec.shape[i])) continue;
    const std::string& name = std::get<std::string>(spec.shape[i]);
    auto [known, is_new] = extents->emplace(name, shape[i]);
    if (!is_new && known->second != shape[i]) {
      throw UserError(Misfit(spec, shape) + "; " + name + " is " + std::to_string(known->second) +
                      " in an earlier input.");
    }
    CheckRange(spec, name, shape[i], dims);
  }
}

// An extent such as 4*h fixes the one name in it that no other input has fixed.
void Solve(const TensorSpec& spec, const Shape& shape, const std::map<std::string, DimRange>& dims,
           Extents* extents) {
  for (size_t i = 0; i < shape.size(); ++i) {
    std::vector<std::string> unknown = Unknown(spec.shape[i], *extents);
    if (unknown.size() != 1) continue;
    Extents at_zero = *extents, at_one = *extents;
    at_zero[unknown[0]] = 0;
    at_one[unknown[0]] = 1;
    std::optional<int64_t> zero = Evaluate(spec.shape[i], at_zero), one = Evaluate(spec.shape[i], at_one);
    if (!zero || !one || *zero == *one) continue;
    (*extents)[unknown[0]] = (shape[i] - *zero) / (*one - *zero);
    CheckRange(spec, unknown[0], extents->at(unknown[0]), dims);
  }
}

// The library's absolute path. What is loaded runs, and what is cut short may end the process.
std::string LibraryPath(const std::string& folder, const FileEntry& expected) {
  char* place = realpath(folder.c_str(), nullptr);  // of the folder: the file may be a link to another name
  std::string path = (place ? std::string(place) : folder) + "/model.so";
  std::free(place);
  struct stat status;
  if (!IsFile(path) || stat(path.c_str(), &status) != 0) {
    throw UserError("'" + folder + "' has no model.so; copy the whole folder again.");
  }
  if (status.st_size != expected.bytes || Sha256OfFile(path) != expected.sha256) {
    throw UserError("model.so of '" + folder + "' is not what manifest.json says; compile the model again, or " +
                    "copy the whole folder again.");
  }
  return path;
}

UserError DoesNotLoad(const std::string& folder) {
  return UserError("model.so of '" + folder + "' does not load; compile the model again, or copy the " +
                   "whole folder again.");
}

ffi::Module Open(const std::string& folder, const FileEntry& expected) {
  std::string path = LibraryPath(folder, expected);
  try {
    return ffi::Module::LoadFromFile(ffi::String(path));
  } catch (const ffi::Error& error) {
    if (IsSentence(error)) throw UserError(error.message());
    throw DoesNotLoad(folder);
  } catch (const std::exception& error) {
    throw DoesNotLoad(folder);
  }
}

}  // namespace

Extents CheckInputs(const std::vector<TensorSpec>& specs, const std::map<std::string, ffi::Tensor>& inputs,
                    const std::map<std::string, DimRange>& dims) {
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    names.insert(spec.name);
    auto found = inputs.find(spec.name);
    if (found == inputs.end()) throw UserError("missing input '" + spec.name + "'.");
    std::string dtype = DtypeName(found->second.dtype());
    if (dtype != spec.Held()) {
      throw UserError("input '" + spec.name + "' has dtype " + dtype + "; expected " + spec.Held() + ".");
    }
    Shape shape = ShapeOf(found->second);
    if (shape.size() != spec.shape.size()) throw UserError(Misfit(spec, shape) + ".");
  }
  for (const auto& [name, tensor] : inputs) {
    if (!names.count(name)) throw UserError("unknown input '" + name + "'.");
  }
  Extents extents;
  for (const TensorSpec& spec : specs) BindNames(spec, ShapeOf(inputs.at(spec.name)), dims, &extents);
  for (const TensorSpec& spec : specs) Solve(spec, ShapeOf(inputs.at(spec.name)), dims, &extents);
  for (const TensorSpec& spec : specs) {
    Shape shape = ShapeOf(inputs.at(spec.name));
    for (size_t i = 0; i < shape.size(); ++i) {
      if (Evaluate(spec.shape[i], extents).value_or(shape[i]) != shape[i]) {
        throw UserError(Misfit(spec, shape) + ".");
      }
    }
  }
  return extents;
}

Model::Model(const std::string& folder) : manifest_(Manifest::Read(folder)) {
  ChooseThreads();
  // Code for AMD GPUs comes with the runtime that knows them.
  if (manifest_.target.kind == "rocm") library_ = Open(folder, manifest_.library);
  auto [device, arch] = OpenDevice(manifest_.target);
  device_ = device;
  manifest_ = Manifest::Read(folder, arch);
  OpenLibraries(manifest_);
  for (const auto& [name, tensor] : MapWeights(folder, manifest_)) weights_.emplace(name, CopyTo(tensor, device));
  if (!library_.has_value()) library_ = Open(folder, manifest_.library);
  try {
    JoinTeam(library_.value());
    machine_ = library_.value()->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  } catch (const std::exception& error) {
    throw DoesNotLoad(folder);
  }
  ffi::Function start = machine_.value()->GetFunction("vm_initialization").value();
  if (device.device_type == kDLCPU) {
    start(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  } else {
    start(static_cast<int>(device.device_type), 0, kPooledAllocator, static_cast<int>(kDLCPU), 0,
          kPooledAllocator);
  }
}

std::string Model::MainFunction() const {
  return manifest_.functions.count("main") ? "main" : manifest_.functions.begin()->first;
}

const FunctionEntry& Model::Entry(const std::string& function) const {
  auto found = manifest_.functions.find(function);
  if (found != manifest_.functions.end()) return found->second;
  std::string known;
  for (const auto& [name, entry] : manifest_.functions) known += (known.empty() ? "'" : ", '") + name + "'";
  throw UserError("the model has no function '" + function + "'; expected one of " + known + ".");
}

NamedTensors Model::Run(const std::map<std::string, ffi::Tensor>& inputs, const std::string& function) {
  const FunctionEntry& entry = Entry(function);
  Extents extents = CheckInputs(entry.inputs, inputs, manifest_.dims);
  for (const EqualExtents& pair : entry.equal) {
    std::optional<int64_t> one = Evaluate(pair.one, extents), other = Evaluate(pair.other, extents);
    if (!one || !other || *one == *other) continue;
    throw UserError("the inputs do not fit: " + pair.where + " joins " + std::get<std::string>(pair.one) + " = " +
                    std::to_string(*one) + " and " + std::get<std::string>(pair.other) + " = " +
                    std::to_string(*other) + "; expected sizes for which these are equal.");
  }
  std::vector<ffi::Any> arguments;
  for (const TensorSpec& spec : entry.inputs) arguments.emplace_back(CopyTo(inputs.at(spec.name), device_));
  ffi::Array<ffi::Tensor> weights;
  for (const std::string& name : entry.weights) weights.push_back(weights_.at(name));
  if (entry.weights_as_tuple) {
    arguments.emplace_back(weights);
  } else {
    arguments.insert(arguments.end(), weights.begin(), weights.end());
  }
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Optional<ffi::Function> callee = machine_.value()->GetFunction(function + manifest_.suffix);
  if (!callee.has_value()) throw UserError("model.so lacks the function '" + function + "'; copy the folder again.");
  ffi::Any result;
  callee.value().CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  std::vector<ffi::Tensor> leaves;
  Flatten(result, &leaves);
  if (leaves.size() != entry.outputs.size()) throw UserError("model.so and manifest.json do not belong together.");
  NamedTensors outputs;
  for (size_t i = 0; i < leaves.size(); ++i) outputs.emplace_back(entry.outputs[i].name, leaves[i]);
  return outputs;
}

void Model::Synchronize() const { tvm_fusion::Synchronize(device_); }

}  // namespace tvm_fusion
