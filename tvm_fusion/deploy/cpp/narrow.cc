#include "narrow.h"

#include <cmath>
#include <map>

namespace tvm_fusion {
namespace {

// As in tvm_fusion/frontend/narrow_types.py.
struct FloatFormat {
  int exponent, mantissa, bias;
  int infinity;  // magnitude bits, -1 where there is none
  int nan;       // the code of NaN, -1 where there is none or where all above infinity are
  bool is_unsigned_zero;
};

constexpr int kNone = -1;

const std::map<std::string, FloatFormat>& Floats() {
  static const std::map<std::string, FloatFormat> kFloats = {
      {"float8_e4m3fn", {4, 3, 7, kNone, 0x7F, false}},
      {"float8_e4m3fnuz", {4, 3, 8, kNone, 0x80, true}},
      {"float8_e5m2", {5, 2, 15, 0x7C, kNone, false}},
      {"float8_e5m2fnuz", {5, 2, 16, kNone, 0x80, true}},
      {"float4_e2m1fn", {2, 1, 1, kNone, kNone, false}},
  };
  return kFloats;
}

const std::map<std::string, int>& Integers() {
  static const std::map<std::string, int> kIntegers = {{"int4", 4}, {"uint4", 4}, {"int2", 2}, {"uint2", 2}};
  return kIntegers;
}

constexpr char kPowerOfTwo[] = "float8_e8m0fnu";  // without sign or zero

double FloatValue(const FloatFormat& format, uint8_t code) {
  int width = format.exponent + format.mantissa, magnitude = code & ((1 << width) - 1);
  double sign = code >> width & 1 ? -1 : 1;
  if (format.is_unsigned_zero ? code == format.nan : magnitude == format.nan) return NAN;
  if (format.infinity != kNone && magnitude >= format.infinity) {
    return magnitude == format.infinity ? sign * INFINITY : NAN;
  }
  int exponent = magnitude >> format.mantissa, fraction = magnitude & ((1 << format.mantissa) - 1);
  int whole = exponent ? (1 << format.mantissa) + fraction : fraction;
  return sign * std::ldexp(whole, (exponent ? exponent : 1) - format.bias - format.mantissa);
}

}  // namespace

bool IsNarrow(const std::string& dtype) {
  return dtype == kPowerOfTwo || Floats().count(dtype) || Integers().count(dtype);
}

double NarrowValue(const std::string& dtype, uint8_t code) {
  if (dtype == kPowerOfTwo) return code == 255 ? NAN : std::ldexp(1.0, code - 127);
  if (auto format = Floats().find(dtype); format != Floats().end()) return FloatValue(format->second, code);
  auto bits = Integers().find(dtype);
  if (bits == Integers().end()) return NAN;
  int number = code & ((1 << bits->second) - 1), sign = 1 << (bits->second - 1);
  return dtype[0] == 'u' ? number : (number ^ sign) - sign;
}

}  // namespace tvm_fusion
