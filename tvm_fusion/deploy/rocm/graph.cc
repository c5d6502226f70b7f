// HIP graphs: launches of a function that are recorded once and then launched as one.
//
// LowerToVM calls two functions in bytecode: one allocates what a graph uses, once in a virtual machine; the other
// launches a graph, and records it where the virtual machine has none for this function and these numbers yet.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/vm/vm.h>

#include <map>
#include <utility>
#include <vector>

#include "hip.h"
#include "registry.h"

namespace tvm_fusion {
namespace rocm {
namespace {

namespace ffi = tvm::ffi;
namespace vm = tvm::runtime::vm;

// Records what this thread launches on a device, in the place of running it.
class Recording {
 public:
  explicit Recording(int device) : device_(device) {
    const Hip& hip = GetHip();
    Check(hip.hipStreamCreateWithFlags(&stream_, kNonBlocking), "a stream was not created");
    // What other threads do meanwhile, such as allocating, does no harm.
    int status = hip.hipStreamBeginCapture(stream_, kThreadLocal);
    if (status != kSuccess) hip.hipStreamDestroy(stream_);
    Check(status, "a HIP graph was not begun");
    TVMFFIEnvSetStream(kDLROCM, device_, stream_, &before_);
  }

  Graph End() {
    is_open_ = false;
    TVMFFIEnvSetStream(kDLROCM, device_, before_, nullptr);
    Graph graph = nullptr;
    Check(GetHip().hipStreamEndCapture(stream_, &graph), "kernels were not recorded as a HIP graph");
    return graph;
  }

  ~Recording() {
    const Hip& hip = GetHip();
    Graph graph = nullptr;
    if (is_open_) {
      TVMFFIEnvSetStream(kDLROCM, device_, before_, nullptr);
      if (hip.hipStreamEndCapture(stream_, &graph) == kSuccess && graph) hip.hipGraphDestroy(graph);
    }
    hip.hipStreamDestroy(stream_);
  }

  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  int device_;
  Stream stream_ = nullptr;
  TVMFFIStreamHandle before_ = nullptr;
  bool is_open_ = true;
};

GraphExec Instantiate(Graph graph) {
  const Hip& hip = GetHip();
  GraphExec exec = nullptr;
  int status = hip.hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0);
  hip.hipGraphDestroy(graph);
  Check(status, "a HIP graph was not made");
  return exec;
}

// What a virtual machine keeps of its graphs.
class HipGraphsNode final : public vm::VMExtensionNode {
 public:
  ~HipGraphsNode() {
    for (const auto& [key, recorded] : recorded_) GetHip().hipGraphExecDestroy(recorded.exec);
  }

  ffi::Any Run(vm::VirtualMachine* machine, const ffi::ObjectRef& function, const ffi::Array<ffi::Any>& args,
               int64_t index, const ffi::Optional<ffi::Shape>& numbers) {
    int device = CurrentDevice();
    std::vector<int64_t> key = {device, index};
    if (numbers.has_value()) key.insert(key.end(), numbers.value().begin(), numbers.value().end());
    auto found = recorded_.find(key);
    if (found != recorded_.end()) {
      Check(GetHip().hipGraphLaunch(found->second.exec, CurrentStream(device)), "a HIP graph was not launched");
      return found->second.results;
    }
    std::vector<ffi::AnyView> views(args.begin(), args.end());
    ffi::PackedArgs packed(views.data(), static_cast<int32_t>(views.size()));
    ffi::Any results;
    // Code objects are loaded and memory is allocated by a run, which a recording must not do. Its results are
    // those of this call.
    machine->InvokeClosurePacked(function, packed, &results);
    Recording recording(device);
    machine->InvokeClosurePacked(function, packed, &results);
    GraphExec exec = Instantiate(recording.End());
    recorded_.emplace(std::move(key), Recorded{results, exec});
    return results;
  }

  ffi::Any Allocate(vm::VirtualMachine* machine, const ffi::ObjectRef& function, int64_t index) {
    auto found = allocated_.find(index);
    if (found != allocated_.end()) return found->second;
    ffi::Any storages;
    machine->InvokeClosurePacked(function, ffi::PackedArgs(nullptr, 0), &storages);
    allocated_.emplace(index, storages);
    return storages;
  }

  static constexpr const bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_fusion.HipGraphs", HipGraphsNode, vm::VMExtensionNode);

 private:
  struct Recorded {
    ffi::Any results;  // tensors that the graph writes, for what comes behind it
    GraphExec exec;
  };
  std::map<std::vector<int64_t>, Recorded> recorded_;  // by device, function and numbers
  std::map<int64_t, ffi::Any> allocated_;
};

class HipGraphs final : public vm::VMExtension {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(HipGraphs, vm::VMExtension, HipGraphsNode);
  static HipGraphs Create() { return HipGraphs(ffi::make_object<HipGraphsNode>()); }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  auto run = [](ffi::PackedArgs args, ffi::Any* result) {
    auto* machine = vm::VirtualMachine::GetContextPtr(args[0]);
    ffi::Optional<ffi::Shape> numbers;
    if (args.size() > 4) numbers = args[4].cast<ffi::Shape>();
    *result = machine->GetOrCreateExtension<HipGraphs>()->Run(
        machine, args[1].cast<ffi::ObjectRef>(), args[2].cast<ffi::Array<ffi::Any>>(), args[3].cast<int64_t>(),
        numbers);
  };
  auto allocate = [](ffi::PackedArgs args, ffi::Any* result) {
    auto* machine = vm::VirtualMachine::GetContextPtr(args[0]);
    *result = machine->GetOrCreateExtension<HipGraphs>()->Allocate(machine, args[1].cast<ffi::ObjectRef>(),
                                                                   args[2].cast<int64_t>());
  };
  Register("tvm_fusion.hip_graph.run_or_capture", ffi::Function::FromPacked(run));
  Register("tvm_fusion.hip_graph.get_cached_alloc", ffi::Function::FromPacked(allocate));
}

}  // namespace rocm
}  // namespace tvm_fusion
