// Extents of tensors: numbers, names of symbolic dimensions, and expressions over such names.
#ifndef TVM_FUSION_EXTENTS_H_
#define TVM_FUSION_EXTENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tvm_fusion {

using Extent = std::variant<int64_t, std::string>;
using Extents = std::map<std::string, int64_t>;  // by name of a symbolic dimension
using Shape = std::vector<int64_t>;

struct DimRange {
  int64_t low, high;  // both included
  int64_t step = 1;   // extents are multiples of it

  bool Holds(int64_t extent) const { return low <= extent && extent <= high && extent % step == 0; }
  std::string Text() const {
    std::string ends = std::to_string(low) + " to " + std::to_string(high);
    return step > 1 ? ends + ", a multiple of " + std::to_string(step) : ends;
  }
};

// Computes an extent such as `2*m + 1` (+, -, *, //, % and parentheses); nothing if it names an unknown
// dimension, divides by zero, overflows, or is no expression.
std::optional<int64_t> Evaluate(const Extent& extent, const Extents& known);

// The names in an extent that are not known yet.
std::vector<std::string> Unknown(const Extent& extent, const Extents& known);

// Whether an extent is a name alone.
bool IsName(const Extent& extent);

std::string ToString(const std::vector<Extent>& shape);
std::string ToString(const Shape& shape);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_EXTENTS_H_
