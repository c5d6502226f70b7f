// numpy's .npy files (format 1.0 to 3.0, C order, little endian).
#ifndef TVM_FUSION_NPY_H_
#define TVM_FUSION_NPY_H_

#include <tvm/ffi/tvm_ffi.h>

#include <string>

namespace tvm_fusion {

// Reads an array as `dtype`: numpy writes types that it does not know, such as bfloat16, as raw bytes.
// Throws UserError for anything but a whole, plain array of that dtype.
// Types of 8 bits and fewer that numpy lacks are raw bytes, one an element; the tensor is of dtype
// `held`, which stands for the array's elements one for one.
tvm::ffi::Tensor ReadNpy(const std::string& path, const std::string& dtype, const std::string& held);

// Writes a contiguous tensor on the host, whose elements stand for those of `dtype`.
void WriteNpy(const std::string& path, const tvm::ffi::Tensor& tensor, const std::string& dtype);

// Path of the file that WriteNpy is writing, for a handler of signals; null while there is none.
extern const char* volatile unfinished;

}  // namespace tvm_fusion

#endif  // TVM_FUSION_NPY_H_
