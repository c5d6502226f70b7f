#include "elements.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "error.h"
#include "narrow.h"

namespace tvm_fusion {
namespace {

namespace ffi = tvm::ffi;

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!tensor->data) throw UserError("no memory for " + std::to_string(bytes) + " bytes.");
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

template <typename T>
double Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return static_cast<double>(value);
}

template <typename T>
void Store(char* at, double value) {
  T stored = static_cast<T>(value);
  std::memcpy(at, &stored, sizeof(T));
}

double LoadHalf(const char* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
}

// Exact for multiples of 1/8 up to 1, which is what is stored.
void StoreHalf(char* at, double value) {
  int exponent = 0;
  double fraction = std::frexp(std::fabs(value), &exponent);
  uint16_t bits = value == 0 ? 0 : (exponent + 14) << 10 | (static_cast<int>(fraction * 2048) & 1023);
  bits |= value < 0 ? 0x8000 : 0;
  std::memcpy(at, &bits, 2);
}

double LoadBfloat(const char* at) {
  uint16_t high;
  std::memcpy(&high, at, 2);
  uint32_t bits = static_cast<uint32_t>(high) << 16;
  return Load<float>(reinterpret_cast<const char*>(&bits));
}

void StoreBfloat(char* at, double value) {
  float wide = static_cast<float>(value);
  std::memcpy(at, reinterpret_cast<const char*>(&wide) + 2, 2);
}

struct Access {
  double (*load)(const char*);
  void (*store)(char*, double);
};

Access AccessOf(DLDataType dtype) {
  static const std::map<std::string, Access> kAccesses = {
      {"float64", {Load<double>, Store<double>}},   {"float32", {Load<float>, Store<float>}},
      {"float16", {LoadHalf, StoreHalf}},           {"bfloat16", {LoadBfloat, StoreBfloat}},
      {"int8", {Load<int8_t>, Store<int8_t>}},      {"uint8", {Load<uint8_t>, Store<uint8_t>}},
      {"int16", {Load<int16_t>, Store<int16_t>}},   {"uint16", {Load<uint16_t>, Store<uint16_t>}},
      {"int32", {Load<int32_t>, Store<int32_t>}},   {"uint32", {Load<uint32_t>, Store<uint32_t>}},
      {"int64", {Load<int64_t>, Store<int64_t>}},   {"uint64", {Load<uint64_t>, Store<uint64_t>}},
      {"bool", {Load<uint8_t>, Store<uint8_t>}},
  };
  auto found = kAccesses.find(DtypeName(dtype));
  return found == kAccesses.end() ? Access{nullptr, nullptr} : found->second;
}

}  // namespace

DLDataType ParseDtype(const std::string& name) {
  try {
    DLDataType dtype = ffi::StringToDLDataType(name);
    if (dtype.lanes == 1 && dtype.bits % 8 == 0 && dtype.bits > 0) return dtype;
  } catch (const ffi::Error&) {
  }
  throw UserError("unknown dtype '" + name + "'.");
}

std::string DtypeName(DLDataType dtype) { return ffi::DLDataTypeToString(dtype); }

int64_t Bytes(const Shape& shape, DLDataType dtype, const std::string& what) {
  int64_t bytes = dtype.bits / 8;
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      throw UserError(what + " has the impossible shape " + ToString(shape) + ".");
    }
  }
  return bytes;
}

ffi::Tensor EmptyOnHost(const Shape& shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0});
}

std::vector<double> Values(const ffi::Tensor& tensor, const std::string& dtype) {
  const char* data = static_cast<const char*>(tensor.data_ptr());
  std::vector<double> values;
  if (IsNarrow(dtype)) {
    for (int64_t i = 0; i < tensor.numel(); ++i) values.push_back(NarrowValue(dtype, data[i]));
    return values;
  }
  Access access = AccessOf(tensor.dtype());
  if (!access.load) return values;
  for (int64_t i = 0; i < tensor.numel(); ++i) values.push_back(access.load(data + i * tensor.dtype().bits / 8));
  return values;
}

void FillRandom(const ffi::Tensor& tensor, const std::string& dtype, unsigned seed) {
  std::mt19937 generator(seed);
  char* data = static_cast<char*>(tensor.data_ptr());
  if (IsNarrow(dtype)) {
    std::vector<char> codes;
    for (int code = 0; code < 256; ++code) {
      if (std::fabs(NarrowValue(dtype, code)) <= 1) codes.push_back(static_cast<char>(code));
    }
    for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = codes[generator() % codes.size()];
    return;
  }
  Access access = AccessOf(tensor.dtype());
  if (!access.store) {
    throw UserError("no random numbers of dtype " + dtype + "; pass the array with --input NAME=FILE.npy.");
  }
  bool is_integer = tensor.dtype().code != kDLFloat && tensor.dtype().code != kDLBfloat;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    double value = is_integer ? generator() % 2 : (static_cast<int>(generator() % 17) - 8) / 8.0;
    access.store(data + i * tensor.dtype().bits / 8, value);
  }
}

}  // namespace tvm_fusion
