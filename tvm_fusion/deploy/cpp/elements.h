// Elements of tensors: sizes, and values of every dtype as double.
#ifndef TVM_FUSION_ELEMENTS_H_
#define TVM_FUSION_ELEMENTS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <string>
#include <vector>

#include "extents.h"

namespace tvm_fusion {

// Of a numpy or ml_dtypes name; throws UserError for an unknown one.
DLDataType ParseDtype(const std::string& name);
std::string DtypeName(DLDataType dtype);

// Bytes of a contiguous tensor; throws UserError, naming `what`, where they overflow.
int64_t Bytes(const Shape& shape, DLDataType dtype, const std::string& what);

// New, uninitialised memory on the host, aligned to 64 bytes.
tvm::ffi::Tensor EmptyOnHost(const Shape& shape, DLDataType dtype);

// All elements of a contiguous tensor on the host, which stand for those of `dtype`.
std::vector<double> Values(const tvm::ffi::Tensor& tensor, const std::string& dtype);

// Fills a tensor on the host with multiples of 1/8 from -1 to 1, integers with 0 and 1; bytes that
// stand for a narrower `dtype` with those of its numbers from -1 to 1.
void FillRandom(const tvm::ffi::Tensor& tensor, const std::string& dtype, unsigned seed);

}  // namespace tvm_fusion

#endif  // TVM_FUSION_ELEMENTS_H_
