// Element types that an artifact keeps one a byte: floats of 8 and 4 bits, integers of 4 and 2.
#ifndef TVM_FUSION_NARROW_H_
#define TVM_FUSION_NARROW_H_

#include <cstdint>
#include <string>

namespace tvm_fusion {

bool IsNarrow(const std::string& dtype);

// The number that a byte stands for; NAN for any other dtype.
double NarrowValue(const std::string& dtype, uint8_t code);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_NARROW_H_
