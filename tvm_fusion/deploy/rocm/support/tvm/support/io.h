// The wheel of TVM 0.27 lacks this header, which its tensor.h and executable.h include: what they mention, nothing
// of which is called here.
#ifndef TVM_SUPPORT_IO_H_
#define TVM_SUPPORT_IO_H_

#include <cstddef>

namespace tvm {
namespace support {

class Stream {
 public:
  template <typename... T>
  bool Read(T&&...);
  template <typename... T>
  bool ReadArray(T&&...);
  template <typename... T>
  void Write(T&&...);
  template <typename... T>
  void WriteArray(T&&...);
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_IO_H_
