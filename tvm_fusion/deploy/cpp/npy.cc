#include "npy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <regex>

#include "elements.h"
#include "error.h"
#include "narrow.h"

namespace tvm_fusion {
namespace {

namespace ffi = tvm::ffi;

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;
constexpr uint32_t kLongestHeader = 1 << 16;

// numpy's description of a dtype, such as <f4; raw bytes (V2) for what numpy itself lacks.
std::string Descr(const std::string& name) {
  if (IsNarrow(name)) return "|V1";
  DLDataType dtype = ParseDtype(name);
  std::string size = std::to_string(dtype.bits / 8), order = dtype.bits == 8 ? "|" : "<";
  if (dtype.code == kDLBool) return "|b1";
  if (dtype.code == kDLInt) return order + "i" + size;
  if (dtype.code == kDLUInt) return order + "u" + size;
  if (dtype.code == kDLFloat) return order + "f" + size;
  return "|V" + size;
}

bool IsSame(const std::string& found, const std::string& expected) {
  bool is_order = found.size() > 1 && (found[0] == '<' || found[0] == '|' || found[0] == '=');
  return is_order && found.substr(1) == expected.substr(1);
}

struct Header {
  std::string descr;
  Shape shape;
};

Header ParseHeader(const std::string& text, const std::string& path) {
  std::smatch descr, order, shape;
  if (!std::regex_search(text, descr, std::regex("'descr': *'([^']*)'")) ||
      !std::regex_search(text, order, std::regex("'fortran_order': *(True|False)")) ||
      !std::regex_search(text, shape, std::regex("'shape': *\\(([0-9, ]*)\\)"))) {
    throw UserError("'" + path + "' holds no plain array; write it with numpy.save.");
  }
  if (order[1] == "True") {
    throw UserError("'" + path + "' is in Fortran order; write it with " +
                    "numpy.save(path, numpy.ascontiguousarray(array)).");
  }
  Header header{descr[1], {}};
  std::string extents = shape[1];
  std::regex number("[0-9]+");
  for (std::sregex_iterator at(extents.begin(), extents.end(), number), end; at != end; ++at) {
    if (at->str().size() > 18) throw UserError("'" + path + "' has an impossible shape.");
    header.shape.push_back(std::stoll(at->str()));
  }
  return header;
}

}  // namespace

const char* volatile unfinished = nullptr;

ffi::Tensor ReadNpy(const std::string& path, const std::string& dtype, const std::string& held) {
  std::ifstream file;
  if (IsFile(path)) file.open(path, std::ios::binary);
  if (!file.is_open()) throw UserError("cannot read '" + path + "'; expected a numpy .npy file.");
  char start[kMagicSize + 2] = {};
  unsigned char length[4] = {};
  file.read(start, sizeof(start));
  bool is_npy = file && std::memcmp(start, kMagic, kMagicSize) == 0 && start[6] >= 1 && start[6] <= 3;
  file.read(reinterpret_cast<char*>(length), start[6] == 1 ? 2 : 4);
  uint32_t size = length[0] | length[1] << 8 | length[2] << 16 | static_cast<uint32_t>(length[3]) << 24;
  if (!is_npy || !file || size > kLongestHeader) {
    throw UserError("'" + path + "' is no numpy .npy file; write it with numpy.save.");
  }
  std::string text(size, '\0');
  file.read(text.data(), size);
  Header header = ParseHeader(text, path);
  DLDataType expected = ParseDtype(held);
  // numpy.save describes ml_dtypes' float8_e5m2 as <f1, which numpy itself cannot read again.
  bool is_float8 = IsNarrow(dtype) && IsSame(header.descr, "|f1");
  if (!IsSame(header.descr, Descr(dtype)) && !is_float8) {
    throw UserError("'" + path + "' holds elements of '" + header.descr + "'; expected " + dtype + " ('" +
                    Descr(dtype) + "').");
  }
  int64_t bytes = Bytes(header.shape, expected, "'" + path + "'");
  std::streamoff begin = file.tellg();
  file.seekg(0, std::ios::end);
  if (!file || file.tellg() - begin != bytes) {
    throw UserError("'" + path + "' is cut off or damaged: its shape " + ToString(header.shape) + " needs " +
                    std::to_string(bytes) + " bytes of data.");
  }
  file.seekg(begin);
  ffi::Tensor tensor = EmptyOnHost(header.shape, expected);
  file.read(static_cast<char*>(tensor.data_ptr()), bytes);
  if (!file) throw UserError("cannot read '" + path + "'.");
  return tensor;
}

void WriteNpy(const std::string& path, const ffi::Tensor& tensor, const std::string& dtype) {
  Shape shape(tensor.shape().begin(), tensor.shape().end());
  std::string header = "{'descr': '" + Descr(dtype) +
                       "', 'fortran_order': False, 'shape': " + ToString(shape) + ", }";
  size_t unpadded = kMagicSize + 4 + header.size() + 1;  // data begin at a multiple of 64 bytes
  header += std::string((64 - unpadded % 64) % 64, ' ') + "\n";
  // Written next to it and renamed: there is never half a file, and a link at its place is replaced, not followed.
  std::string staging = path.substr(0, path.rfind('/') + 1) + ".tvm_fusion_run." + std::to_string(getpid());
  unfinished = staging.c_str();
  int descriptor = open(staging.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor >= 0) close(descriptor);
  std::ofstream file(descriptor >= 0 ? staging : std::string(), std::ios::binary);
  file.write(kMagic, kMagicSize);
  file.put(1).put(0).put(static_cast<char>(header.size() & 255)).put(static_cast<char>(header.size() >> 8));
  file << header;
  file.write(static_cast<const char*>(tensor.data_ptr()), Bytes(shape, tensor.dtype(), path));
  file.close();
  if (!file || std::rename(staging.c_str(), path.c_str()) != 0) {
    if (descriptor >= 0) unlink(staging.c_str());
    unfinished = nullptr;
    throw UserError("cannot write '" + path + "'; name a folder that you may write to.");
  }
  unfinished = nullptr;
}

}  // namespace tvm_fusion
