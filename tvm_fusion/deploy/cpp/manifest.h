// The manifest of an artifact, as tvm_fusion/deploy/runtime/artifact/manifest.py documents it, checked.
#ifndef TVM_FUSION_MANIFEST_H_
#define TVM_FUSION_MANIFEST_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "extents.h"

namespace tvm_fusion {

struct TensorSpec {
  std::string name;
  std::vector<Extent> shape;
  std::string dtype;
  std::string storage;  // the dtype in which the code takes or returns it, one element for each; "" is `dtype`

  const std::string& Held() const { return storage.empty() ? dtype : storage; }
};

// Two extents that are equal in every call, and the operator that joins them.
struct EqualExtents {
  Extent one, other;
  std::string where;
};

// Numbers of an input: each, and the `count` from it on, are at least 0 and below a number.
struct Limit {
  int64_t below;
  Extent count;

  bool IsOfEach() const { return std::holds_alternative<int64_t>(count) && std::get<int64_t>(count) == 1; }
};

struct FunctionEntry {
  std::vector<TensorSpec> inputs, outputs;
  std::map<std::string, Limit> limits;              // by input
  std::set<std::string> written, results_in_place;  // inputs that are written to; the outputs that lie there
  std::vector<EqualExtents> equal;
  std::vector<std::string> weights;
  bool weights_as_tuple = false;
};

struct WeightEntry {
  Shape shape;  // as stored
  std::string dtype;
  int64_t offset = 0, bytes = 0;
};

struct FileEntry {
  int64_t bytes = 0;
  std::string sha256;  // in hexadecimal
};

struct Target {
  std::string text, kind, machine;
  std::vector<std::string> archs;  // ascending
  std::map<std::string, std::vector<std::string>> cpuinfo;  // of CPUs: instruction sets by Linux's names
};

// What an artifact holds for one architecture.
struct Manifest {
  Target target;
  std::map<std::string, DimRange> dims;
  std::string suffix;  // behind the names of the library's functions
  std::map<std::string, FunctionEntry> functions;
  std::map<std::string, WeightEntry> weights;
  FileEntry library, weights_file;
  std::vector<std::string> libraries;         // TVM's, next to the main one
  std::vector<std::string> packed_functions;  // that no library of TVM has

  // Reads a folder's manifest.json; `arch` says whose code, the first one's if it is empty.
  // Throws UserError for a damaged manifest or one of another schema.
  static Manifest Read(const std::string& folder, const std::string& arch = "");
};

}  // namespace tvm_fusion

#endif  // TVM_FUSION_MANIFEST_H_
