#include "extents.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace tvm_fusion {
namespace {

bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

struct Failure {};  // of an expression; Evaluate() turns it into nothing

void Check(bool overflows) {
  if (overflows) throw Failure();
}

// Recursive descent: sum = product {(+|-) product}; product = atom {(*|//|%) atom};
// atom = number | name | -atom | (sum) | max(sum, sum) | min(sum, sum).
class Parser {
 public:
  Parser(const std::string& text, const Extents& known) : text_(text), known_(known) {}

  int64_t Whole() {
    int64_t value = Sum();
    if (Peek() != '\0') throw Failure();
    return value;
  }

 private:
  char Peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  int64_t Sum() {
    int64_t left = Product();
    for (char c = Peek(); c == '+' || c == '-'; c = Peek()) {
      ++at_;
      int64_t right = Product(), value = 0;
      Check(c == '+' ? __builtin_add_overflow(left, right, &value)
                     : __builtin_sub_overflow(left, right, &value));
      left = value;
    }
    return left;
  }

  int64_t Product() {
    int64_t left = Atom();
    for (char c = Peek(); c == '*' || c == '/' || c == '%'; c = Peek()) {
      ++at_;
      if (c == '/' && Peek() == '/') ++at_;
      int64_t right = Atom(), value = 0;
      if (c == '*') {
        Check(__builtin_mul_overflow(left, right, &value));
        left = value;
        continue;
      }
      if (right <= 0) throw Failure();  // extents are divided by positive numbers only
      int64_t remainder = (left % right + right) % right;  // as Python's, towards minus infinity
      left = c == '%' ? remainder : (left - remainder) / right;
    }
    return left;
  }

  int64_t Atom() {
    if (++depth_ > 100) throw Failure();
    char c = Peek();
    int64_t value = 0;
    if (c == '(') {
      ++at_;
      value = Sum();
      if (Peek() != ')') throw Failure();
      ++at_;
    } else if (c == '-') {
      ++at_;
      value = -Atom();
    } else if (IsDigit(c)) {
      for (; at_ < text_.size() && IsDigit(text_[at_]); ++at_) {
        Check(__builtin_mul_overflow(value, int64_t{10}, &value));
        Check(__builtin_add_overflow(value, text_[at_] - '0', &value));
      }
    } else if (IsLetter(c)) {
      size_t start = at_;
      while (at_ < text_.size() && (IsLetter(text_[at_]) || IsDigit(text_[at_]))) ++at_;
      std::string name = text_.substr(start, at_ - start);
      if ((name == "max" || name == "min") && Peek() == '(') {
        ++at_;
        int64_t one = Sum();
        if (Peek() != ',') throw Failure();
        ++at_;
        int64_t other = Sum();
        if (Peek() != ')') throw Failure();
        ++at_;
        value = name == "max" ? std::max(one, other) : std::min(one, other);
      } else {
        auto found = known_.find(name);
        if (found == known_.end()) throw Failure();
        value = found->second;
      }
    } else {
      throw Failure();
    }
    --depth_;
    return value;
  }

  const std::string& text_;
  const Extents& known_;
  size_t at_ = 0;
  int depth_ = 0;
};

template <typename Item, typename Text>
std::string Joined(const std::vector<Item>& items, Text text) {
  std::string joined = "(";
  for (size_t i = 0; i < items.size(); ++i) joined += (i ? ", " : "") + text(items[i]);
  return joined + (items.size() == 1 ? ",)" : ")");
}

}  // namespace

std::optional<int64_t> Evaluate(const Extent& extent, const Extents& known) {
  if (const int64_t* number = std::get_if<int64_t>(&extent)) return *number;
  try {
    return Parser(std::get<std::string>(extent), known).Whole();
  } catch (const Failure&) {
    return std::nullopt;
  }
}

std::vector<std::string> Unknown(const Extent& extent, const Extents& known) {
  std::vector<std::string> names;
  const std::string* text = std::get_if<std::string>(&extent);
  for (size_t at = 0; text && at < text->size();) {
    size_t start = at;
    while (at < text->size() && (IsLetter((*text)[at]) || (at > start && IsDigit((*text)[at])))) ++at;
    if (at == start) {
      ++at;
    } else if (std::string name = text->substr(start, at - start); !known.count(name)) {
      names.push_back(name);
    }
  }
  return names;
}

bool IsName(const Extent& extent) {
  const std::string* text = std::get_if<std::string>(&extent);
  if (!text || text->empty() || IsDigit((*text)[0])) return false;
  for (char c : *text) {
    if (!IsLetter(c) && !IsDigit(c)) return false;
  }
  return true;
}

std::string ToString(const std::vector<Extent>& shape) {
  return Joined(shape, [](const Extent& extent) {
    const int64_t* number = std::get_if<int64_t>(&extent);
    return number ? std::to_string(*number) : std::get<std::string>(extent);
  });
}

std::string ToString(const Shape& shape) {
  return Joined(shape, [](int64_t extent) { return std::to_string(extent); });
}

}  // namespace tvm_fusion
