#include "weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "elements.h"
#include "error.h"

namespace tvm_fusion {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kAlignment = 64;

// A file, mapped privately: what kernels write changes neither the file nor what others see.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
      if (file >= 0) close(file);
      throw UserError("cannot read '" + path + "'; copy the whole folder again.");
    }
    size_ = status.st_size;
    if (size_ > 0) {
      data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (data_ == MAP_FAILED) throw UserError("cannot map '" + path + "' into memory.");
  }
  ~Mapping() {
    if (data_) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  int64_t size() const { return size_; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  int64_t size_ = 0;
  void* data_ = nullptr;
};

// Keeps the mapping alive as long as one of its tensors.
struct View {
  std::shared_ptr<Mapping> mapping;
  int64_t offset;
  void AllocData(DLTensor* tensor) { tensor->data = mapping->data() + offset; }
  void FreeData(DLTensor*) {}
};

}  // namespace

std::map<std::string, ffi::Tensor> MapWeights(const std::string& folder, const Manifest& manifest) {
  auto mapping = std::make_shared<Mapping>(folder + "/weights.bin");
  if (mapping->size() != manifest.weights_file.bytes) {
    throw UserError("weights.bin of '" + folder + "' has " + std::to_string(mapping->size()) + " bytes; expected " +
                    std::to_string(manifest.weights_file.bytes) + "; copy the whole folder again.");
  }
  std::map<std::string, ffi::Tensor> weights;
  for (const auto& [name, entry] : manifest.weights) {
    DLDataType dtype = ParseDtype(entry.dtype);
    bool fits = Bytes(entry.shape, dtype, "weight '" + name + "'") == entry.bytes &&
                entry.offset >= 0 && entry.offset % kAlignment == 0 &&
                entry.offset <= mapping->size() && entry.bytes <= mapping->size() - entry.offset;
    if (!fits) {
      throw UserError("weight '" + name + "' does not lie in weights.bin as manifest.json says; " +
                      "compile the model again, or copy the whole folder again.");
    }
    weights.emplace(name, ffi::Tensor::FromNDAlloc(View{mapping, entry.offset}, ffi::Shape(entry.shape),
                                                   dtype, DLDevice{kDLCPU, 0}));
  }
  return weights;
}

}  // namespace tvm_fusion
