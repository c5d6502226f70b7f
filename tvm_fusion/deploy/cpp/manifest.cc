#include "manifest.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/tvm_ffi.h>

#include <fstream>
#include <sstream>

#include "error.h"
#include "narrow.h"

namespace tvm_fusion {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::Any;
using tvm::ffi::String;

constexpr int64_t kSchema = 2;
constexpr int kDeepest = 64;  // levels of brackets; the parser is recursive

// A JSON value with the path to it, for complaints.
class Node {
 public:
  Node(Any value, std::string path) : value_(std::move(value)), path_(std::move(path)) {}

  template <typename T>
  T As(const char* expected) const {
    std::optional<T> found = value_.try_cast<T>();
    if (!found) Damaged(std::string("is not ") + expected);
    return *found;
  }
  std::string Text() const { return As<String>("a string"); }
  int64_t Number() const { return As<int64_t>("an integer"); }
  bool Truth() const { return As<bool>("true or false"); }

  bool Has(const std::string& key) const { return Object().count(String(key)) > 0; }
  Node operator[](const std::string& key) const {
    json::Object object = Object();
    if (!object.count(String(key))) Damaged("lacks '" + key + "'");
    return Node(object[String(key)], path_ + "/" + key);
  }
  std::vector<Node> Items() const {
    std::vector<Node> items;
    for (const Any& item : As<json::Array>("a list")) {
      items.emplace_back(item, path_ + "/" + std::to_string(items.size()));
    }
    return items;
  }
  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (const Node& item : Items()) texts.push_back(item.Text());
    return texts;
  }
  std::map<std::string, Node> Entries() const {
    std::map<std::string, Node> entries;
    for (const auto& [key, value] : Object()) {
      std::string name = Node(key, path_).Text();
      entries.emplace(name, Node(value, path_ + "/" + name));
    }
    return entries;
  }

  [[noreturn]] void Damaged(const std::string& why) const {
    throw UserError("manifest.json is damaged (" + (path_.empty() ? "it" : path_) + " " + why +
                    "); compile the model again, or copy the whole folder again.");
  }

 private:
  json::Object Object() const { return As<json::Object>("an object"); }

  Any value_;
  std::string path_;
};

bool IsTooDeep(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepest) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

Node Parse(const std::string& folder) {
  std::string path = folder + "/manifest.json";
  std::ifstream file;
  if (IsFile(path)) file.open(path, std::ios::binary);
  if (!file.is_open()) {
    throw UserError("'" + folder + "' is not an artifact (it has no manifest.json); expected a " +
                    "folder that `tvm-fusion compile` wrote.");
  }
  std::stringstream content;
  content << file.rdbuf();
  String complaint;
  Node whole(nullptr, "");
  if (IsTooDeep(content.str())) whole.Damaged("is nested too deeply");
  Any value = json::Parse(content.str(), &complaint);
  if (!complaint.empty()) whole.Damaged("is no JSON");
  return Node(value, "");
}

constexpr char kStorage[] = "uint8";

Extent OneExtent(const Node& extent) {
  if (extent.As<Any>("an extent").try_cast<String>()) return extent.Text();
  if (extent.Number() < 0) extent.Damaged("is negative");
  return extent.Number();
}

std::vector<TensorSpec> Specs(const Node& list) {
  std::vector<TensorSpec> specs;
  for (const Node& item : list.Items()) {
    TensorSpec spec{item["name"].Text(), {}, item["dtype"].Text(), ""};
    if (item.Has("storage")) spec.storage = item["storage"].Text();
    if (!spec.storage.empty() && (spec.storage != kStorage || !IsNarrow(spec.dtype))) {
      item["storage"].Damaged("is not that of the dtype");
    }
    for (const Node& extent : item["shape"].Items()) spec.shape.push_back(OneExtent(extent));
    specs.push_back(std::move(spec));
  }
  return specs;
}

WeightEntry Weight(const Node& node) {
  WeightEntry entry;
  Node shape = node.Has("packed") ? node["packed"]["shape"] : node["shape"];
  for (const Node& extent : shape.Items()) {
    entry.shape.push_back(extent.Number());
    if (entry.shape.back() < 0) extent.Damaged("is negative");
  }
  entry.dtype = node["dtype"].Text();
  entry.offset = node["offset"].Number();
  entry.bytes = node["bytes"].Number();
  return entry;
}

FileEntry File(const Node& node) { return {node["bytes"].Number(), node["sha256"].Text()}; }

}  // namespace

Manifest Manifest::Read(const std::string& folder, const std::string& arch) {
  Node root = Parse(folder);
  if (int64_t schema = root["schema"].Number(); schema != kSchema) {
    throw UserError("artifact '" + folder + "' has schema " + std::to_string(schema) +
                    "; expected schema " + std::to_string(kSchema) +
                    "; compile the model again with this version.");
  }
  Manifest result;
  Node target = root["target"];
  result.target.text = target["text"].Text();
  result.target.kind = target["kind"].Text();
  result.target.archs = target["archs"].Texts();
  if (result.target.archs.empty()) target["archs"].Damaged("is empty");
  if (target.Has("machine")) result.target.machine = target["machine"].Text();
  for (const std::string& name : result.target.archs) {
    Node entry = name == result.target.archs[0] ? target : root["architectures"][name];
    if (entry.Has("cpuinfo")) result.target.cpuinfo[name] = entry["cpuinfo"].Texts();
  }
  for (const auto& [name, dim] : root["dims"].Entries()) {
    DimRange range{dim["min"].Number(), dim["max"].Number()};
    if (dim.Has("step")) range.step = dim["step"].Number();
    if (range.low < 0 || range.low > range.high || range.step < 1) dim.Damaged("is no range");
    result.dims[name] = range;
  }
  result.library = File(root["files"]["model.so"]);
  result.weights_file = File(root["files"]["weights.bin"]);
  if (root.Has("libraries")) result.libraries = root["libraries"].Texts();
  if (root.Has("packed_functions")) result.packed_functions = root["packed_functions"].Texts();
  // A further architecture's entries take the places of the first one's.
  bool is_first = arch.empty() || arch == result.target.archs[0];
  Node own = is_first ? root : root["architectures"][arch];
  result.suffix = own["suffix"].Text();
  for (const auto& [name, entry] : own["weights"].Entries()) result.weights[name] = Weight(entry);
  for (const auto& [name, entry] : own["functions"].Entries()) {
    Node signature = root["functions"][name];
    FunctionEntry& function = result.functions[name];
    function.inputs = Specs(signature["inputs"]);
    function.outputs = Specs(signature["outputs"]);
    if (signature.Has("equal")) {
      for (const Node& pair : signature["equal"].Items()) {
        function.equal.push_back({pair["one"].Text(), pair["other"].Text(), pair["where"].Text()});
      }
    }
    if (signature.Has("limits")) {
      for (const auto& [input, limit] : signature["limits"].Entries()) {
        function.limits[input] = {limit["below"].Number(), OneExtent(limit["count"])};
      }
    }
    if (entry.Has("in_place")) {
      for (const auto& [input, output] : entry["in_place"].Entries()) {
        function.written.insert(input);
        function.results_in_place.insert(output.Text());
      }
    }
    function.weights = entry["weights"].Texts();
    if (entry.Has("weights_as_tuple")) function.weights_as_tuple = entry["weights_as_tuple"].Truth();
    for (const std::string& weight : function.weights) {
      if (!result.weights.count(weight)) entry.Damaged("names the unknown weight '" + weight + "'");
    }
  }
  if (result.functions.empty()) root["functions"].Damaged("is empty");
  return result;
}

}  // namespace tvm_fusion
