// A HIP runtime of the functions that deploy/rocm and profiles call, whose GPUs are this process: nothing here runs on a GPU.
//
//   streams   Launches, copies and events wait in the queue of their stream until something waits for that stream.
//             What is read without waiting is stale.
//   memory    New memory is NaN, freed memory is poisoned; bytes behind an allocation are looked at when it is freed.
//             Copies must lie inside of one allocation.
//   kernels   A callback runs them, on a copy of their arguments. Code objects must be AMD's ELF files for the GPU,
//             with symbols for the kernels.
//   capture   Launches on a captured stream become a graph; what a capture must not do fails as HIP lets it fail.
//   errors    fake_fail() lets the next call of a function fail.
//
// The environment variables FAKE_HIP_ARCH and FAKE_HIP_KERNELS (a library with the callback `launch`) set it up in
// programs without Python.
#include <dlfcn.h>
#include <unistd.h>
#include <elf.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidConfiguration = 9, kNoDevice = 100, kInvalidDevice = 101,
              kInvalidImage = 200, kNoBinaryForGpu = 209, kInvalidHandle = 400, kNotFound = 500, kLaunchFailure = 719,
              kCaptureUnsupported = 900, kCaptureInvalidated = 901;
constexpr size_t kFence = 256;                    // bytes behind an allocation
constexpr int kNew = 0xff, kFreed = 0xee, kBehind = 0xfd;
constexpr uint16_t kAmdGpu = 224;                 // ELF's e_machine
const std::map<std::string, uint32_t> kMachines = {{"gfx90a", 0x3f}, {"gfx942", 0x4c}, {"gfx950", 0x4f},
                                                   {"gfx1100", 0x41}, {"gfx1201", 0x4e}};  // e_flags & 0xff

using Work = std::function<void()>;
typedef int (*Launcher)(const void* code, size_t code_bytes, const char* name, const unsigned* grid,
                        const unsigned* block, unsigned shared, const void* arguments, size_t argument_bytes);

struct Graph {
  std::vector<Work> nodes;
};

struct Stream {
  std::deque<Work> queue;
  std::unique_ptr<Graph> captured;
  bool is_valid = true;  // the capture
};

// A record of an event: what waits for it drains the stream up to there.
struct Mark {
  Stream* stream = nullptr;
  bool has_happened = false;
  double milliseconds = 0;
};

struct Event {
  std::shared_ptr<Mark> mark;
};

struct Code {
  std::string bytes;
  bool is_loaded = true;
};

struct Module {
  std::shared_ptr<Code> code;
};

struct Function {
  std::shared_ptr<Code> code;
  std::string name;
};

struct Fake {
  std::string arch = "gfx942";
  int devices = 1, version = 60443483;
  size_t memory = size_t{1} << 30;
  Launcher launcher = nullptr;
  std::map<char*, size_t> allocations;
  std::set<void*> pinned;
  std::map<std::string, int> failures;  // status by function
  int pending_error = 0;                // of kernels, which the next wait returns
  long launches = 0, graph_launches = 0, captures = 0, steps = 0, deepest = 0, modules = 0;
  std::string log, complaint;
  Stream none;  // the null stream
  std::set<Stream*> streams{&none};
};

std::recursive_mutex mutex;

// Kernels may run in Python, whose lock they take; so a thread that holds that lock lets go of it
// while it waits for this one.
struct Python {
  int (*is_there)() = nullptr;
  int (*holds)() = nullptr;
  void* (*release)() = nullptr;
  void (*acquire)(void*) = nullptr;
} python;

class Lock {
 public:
  Lock() {
    bool holds = python.is_there && python.is_there() && python.holds();
    while (holds && !mutex.try_lock()) {
      void* thread = python.release();
      usleep(50);
      python.acquire(thread);
    }
    if (!holds) mutex.lock();
  }
  ~Lock() { mutex.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

Fake* fake = [] {
  auto* made = new Fake();
  if (const char* arch = std::getenv("FAKE_HIP_ARCH")) made->arch = arch;
  if (const char* devices = std::getenv("FAKE_HIP_DEVICES")) made->devices = std::atoi(devices);
  if (const char* path = std::getenv("FAKE_HIP_KERNELS")) {
    void* library = dlopen(path, RTLD_NOW);
    if (library) made->launcher = reinterpret_cast<Launcher>(dlsym(library, "launch"));
  }
  return made;
}();
thread_local int current_device = 0;
thread_local Stream* capturing = nullptr;

#define ENTER                                              \
  Lock lock;                                               \
  if (int status = Planned(__func__)) return status

int Planned(const char* function) {
  auto found = fake->failures.find(function);
  if (found == fake->failures.end()) return 0;
  int status = found->second;
  fake->failures.erase(found);
  return status;
}

void Complain(const std::string& what) {
  if (fake->complaint.empty()) fake->complaint = what;
}

Stream* Known(void* stream) {
  Stream* found = stream ? static_cast<Stream*>(stream) : &fake->none;
  return fake->streams.count(found) ? found : nullptr;
}

void Step(Stream* stream) {
  Work work = std::move(stream->queue.front());
  stream->queue.pop_front();
  ++fake->steps;
  work();
}

void Drain(Stream* stream) {
  while (!stream->queue.empty()) Step(stream);
}

void DrainAll() {
  for (Stream* stream : fake->streams) Drain(stream);
}

int TakeError() {
  int status = fake->pending_error;
  fake->pending_error = 0;
  return status;
}

void Enqueue(Stream* stream, Work work) {
  if (stream->captured) {
    stream->captured->nodes.push_back(std::move(work));
    return;
  }
  stream->queue.push_back(std::move(work));
  fake->deepest = std::max(fake->deepest, static_cast<long>(stream->queue.size()));
}

// What would wait for the device, or change its memory, invalidates a capture of this thread.
bool Captures() {
  if (!capturing) return false;
  capturing->is_valid = false;
  return true;
}

bool Owns(const void* pointer, size_t bytes) {
  char* begin = static_cast<char*>(const_cast<void*>(pointer));
  auto next = fake->allocations.upper_bound(begin);
  if (next == fake->allocations.begin()) return false;
  auto [start, size] = *std::prev(next);
  return begin + bytes <= start + size;
}

size_t Used() {
  size_t used = 0;
  for (const auto& [start, size] : fake->allocations) used += size;
  return used;
}

// Bytes of an ELF file that ends with its table of sections.
size_t ElfBytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

}  // namespace

extern "C" {

// For tests.
void fake_configure(const char* arch, int devices, size_t memory, int version) {
  fake->arch = arch;
  fake->devices = devices;
  fake->memory = memory;
  fake->version = version;
}
void fake_set_launcher(Launcher launcher) { fake->launcher = launcher; }

void fake_set_python(int (*is_there)(), int (*holds)(), void* (*release)(), void (*acquire)(void*)) {
  python = {is_there, holds, release, acquire};
}
void fake_fail(const char* function, int status) { fake->failures[function] = status; }
int fake_owns(const void* pointer, size_t bytes) { return Owns(pointer, bytes); }
long fake_allocations() { return static_cast<long>(fake->allocations.size()); }
// Addresses and sizes of what is allocated, as far as there is room.
long fake_memory(void** addresses, size_t* sizes, long room) {
  long count = 0;
  for (const auto& [start, size] : fake->allocations) {
    if (count == room) break;
    addresses[count] = start;
    sizes[count++] = size;
  }
  return count;
}
long fake_launches() { return fake->launches; }
long fake_graph_launches() { return fake->graph_launches; }
long fake_captures() { return fake->captures; }
long fake_deepest() { return fake->deepest; }
long fake_modules() { return fake->modules; }
long fake_pending() {
  long count = 0;
  for (Stream* stream : fake->streams) count += static_cast<long>(stream->queue.size());
  return count;
}
const char* fake_log() { return fake->log.c_str(); }
const char* fake_complaint() { return fake->complaint.c_str(); }
void fake_reset() {
  DrainAll();
  fake->failures.clear();
  fake->log.clear();
  fake->complaint.clear();
  fake->pending_error = 0;
  fake->launches = fake->graph_launches = fake->captures = fake->deepest = 0;
}

// HIP's.
int hipRuntimeGetVersion(int* version) {
  ENTER;
  *version = fake->version;
  return 0;
}

const char* hipGetErrorString(int status) {
  static const std::map<int, const char*> texts = {
      {0, "no error"}, {kInvalidValue, "invalid argument"}, {kOutOfMemory, "out of memory"},
      {kNoDevice, "no ROCm-capable device is detected"}, {kInvalidDevice, "invalid device ordinal"},
      {kInvalidImage, "device kernel image is invalid"},
      {kNoBinaryForGpu, "no kernel image is available for execution on the device"},
      {kNotFound, "named symbol not found"}, {kLaunchFailure, "unspecified launch failure"}};
  auto found = texts.find(status);
  return found == texts.end() ? "unknown error" : found->second;
}

int hipGetDeviceCount(int* count) {
  ENTER;
  *count = fake->devices;
  return fake->devices ? 0 : kNoDevice;
}

int hipGetDevice(int* device) {
  ENTER;
  *device = current_device;
  return fake->devices ? 0 : kNoDevice;
}

int hipSetDevice(int device) {
  ENTER;
  if (device < 0 || device >= fake->devices) return fake->devices ? kInvalidDevice : kNoDevice;
  current_device = device;
  return 0;
}

int hipGetDevicePropertiesR0600(void* properties, int device) {
  ENTER;
  if (device < 0 || device >= fake->devices) return kInvalidDevice;
  char* at = static_cast<char*>(properties);
  auto write = [at](size_t offset, auto value) { std::memcpy(at + offset, &value, sizeof(value)); };
  std::memset(at, 0, 1472);
  std::snprintf(at, 256, "fake %s", fake->arch.c_str());
  write(288, fake->memory);
  write(296, size_t{65536});
  write(304, 65536);
  write(308, fake->arch.rfind("gfx9", 0) == 0 ? 64 : 32);
  write(320, 1024);
  for (int i = 0; i < 3; ++i) write(324 + 4 * i, 1024);
  write(348, 2100000);
  write(360, 9);
  write(364, 4);
  write(388, 304);
  write(616, 4194304);
  std::snprintf(at + 1160, 256, "%s:sramecc+:xnack-", fake->arch.c_str());
  return 0;
}

int hipMalloc(void** pointer, size_t bytes) {
  ENTER;
  if (Captures()) return kCaptureUnsupported;
  if (fake->devices == 0) return kNoDevice;
  *pointer = nullptr;
  if (bytes == 0) return 0;
  if (Used() + bytes > fake->memory) return kOutOfMemory;
  size_t whole = (bytes + kFence + 255) / 256 * 256;
  char* data = static_cast<char*>(std::aligned_alloc(256, whole));
  std::memset(data, kNew, bytes);
  std::memset(data + bytes, kBehind, whole - bytes);
  fake->allocations[data] = bytes;
  *pointer = data;
  return 0;
}

int hipFree(void* pointer) {
  ENTER;
  if (!pointer) return 0;
  if (Captures()) return kCaptureUnsupported;
  DrainAll();
  char* data = static_cast<char*>(pointer);
  auto found = fake->allocations.find(data);
  if (found == fake->allocations.end()) {
    Complain("memory is freed that is not allocated");
    return kInvalidValue;
  }
  size_t bytes = found->second, whole = (bytes + kFence + 255) / 256 * 256;
  for (size_t i = bytes; i < whole; ++i) {
    if (static_cast<unsigned char>(data[i]) != kBehind) Complain("something was written behind an allocation");
  }
  std::memset(data, kFreed, bytes);
  fake->allocations.erase(found);
  std::free(data);
  return 0;
}

int hipHostMalloc(void** pointer, size_t bytes, unsigned) {
  ENTER;
  *pointer = std::malloc(bytes);
  fake->pinned.insert(*pointer);
  return 0;
}

int hipHostFree(void* pointer) {
  ENTER;
  DrainAll();
  if (!fake->pinned.erase(pointer)) return kInvalidValue;
  std::free(pointer);
  return 0;
}

int hipMemGetInfo(size_t* free, size_t* total) {
  ENTER;
  *total = fake->memory;
  *free = fake->memory - Used();
  return 0;
}

int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
  if (!stream || kind < 0 || kind > 3) return kInvalidValue;
  if (Owns(to, bytes) != to_device || Owns(from, bytes) != from_device) {
    Complain("a copy does not lie in the memory that it names");
    return kInvalidValue;
  }
  if (from_device) {
    Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  } else {  // staged before the call returns
    std::string held(static_cast<const char*>(from), bytes);
    Enqueue(stream, [=] { std::memcpy(to, held.data(), bytes); });
  }
  return 0;
}

int hipMemsetAsync(void* to, int value, size_t bytes, void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream || !Owns(to, bytes)) return kInvalidValue;
  Enqueue(stream, [=] { std::memset(to, value, bytes); });
  return 0;
}

int hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, void* handle) {
  if (to_device >= fake->devices || from_device >= fake->devices) return kInvalidDevice;
  return hipMemcpyAsync(to, from, bytes, 3, handle);
}

int hipStreamCreateWithFlags(void** stream, unsigned) {
  ENTER;
  auto* made = new Stream();
  fake->streams.insert(made);
  *stream = made;
  return 0;
}

int hipStreamDestroy(void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream || stream == &fake->none || stream->captured) return kInvalidHandle;
  Drain(stream);
  fake->streams.erase(stream);
  delete stream;
  return 0;
}

int hipStreamSynchronize(void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream) return kInvalidHandle;
  if (Captures() || stream->captured) return kCaptureUnsupported;
  Drain(stream);
  return TakeError();
}

int hipStreamWaitEvent(void* handle, void* event, unsigned) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream) return kInvalidHandle;
  std::shared_ptr<Mark> mark = static_cast<Event*>(event)->mark;
  if (!mark) return 0;
  Enqueue(stream, [mark] {
    while (!mark->has_happened && fake->streams.count(mark->stream)) Step(mark->stream);
  });
  return 0;
}

int hipEventCreateWithFlags(void** event, unsigned) {
  ENTER;
  *event = new Event();
  return 0;
}

int hipEventDestroy(void* event) {
  ENTER;
  delete static_cast<Event*>(event);
  return 0;
}

int hipEventRecord(void* event, void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream) return kInvalidHandle;
  auto mark = std::make_shared<Mark>();
  mark->stream = stream;
  static_cast<Event*>(event)->mark = mark;
  Enqueue(stream, [mark] {
    mark->has_happened = true;
    mark->milliseconds = static_cast<double>(fake->steps);  // each step takes one
  });
  return 0;
}

int hipEventSynchronize(void* event) {
  ENTER;
  if (Captures()) return kCaptureUnsupported;
  std::shared_ptr<Mark> mark = static_cast<Event*>(event)->mark;
  while (mark && !mark->has_happened) Step(mark->stream);
  return TakeError();
}

int hipEventElapsedTime(float* milliseconds, void* begin, void* end) {
  ENTER;
  std::shared_ptr<Mark> first = static_cast<Event*>(begin)->mark, last = static_cast<Event*>(end)->mark;
  if (!first || !last || !first->has_happened || !last->has_happened) return kInvalidHandle;
  *milliseconds = static_cast<float>(last->milliseconds - first->milliseconds);
  return 0;
}

int hipModuleLoadData(void** module, const void* image) {
  ENTER;
  if (Captures()) return kCaptureUnsupported;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kAmdGpu) return kInvalidImage;
  auto machine = kMachines.find(fake->arch);
  if (machine == kMachines.end() || (header.e_flags & 0xff) != machine->second) return kNoBinaryForGpu;
  ++fake->modules;
  auto code = std::make_shared<Code>();
  code->bytes.assign(static_cast<const char*>(image), ElfBytes(image));
  *module = new Module{code};
  return 0;
}

int hipModuleUnload(void* module) {
  ENTER;
  DrainAll();
  --fake->modules;
  static_cast<Module*>(module)->code->is_loaded = false;
  delete static_cast<Module*>(module);
  return 0;
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
  ENTER;
  std::shared_ptr<Code> code = static_cast<Module*>(module)->code;
  std::string symbol = std::string(1, '\0') + name + ".kd" + std::string(1, '\0');  // its kernel descriptor
  if (code->bytes.find(symbol) == std::string::npos) return kNotFound;
  *function = new Function{code, name};
  return 0;
}

int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* handle, void** parameters, void** extra) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream) return kInvalidHandle;
  if (!gx || !gy || !gz || !bx || !by || !bz || bx > 1024 || by > 1024 || bz > 1024 || bx * by * bz > 1024 ||
      shared > 65536) {
    return kInvalidConfiguration;
  }
  auto key = [extra](int i) { return reinterpret_cast<uintptr_t>(extra[i]); };
  if (parameters || !extra || key(0) != 1 || key(2) != 2 || key(4) != 3) return kInvalidValue;
  const void* arguments = extra[1];
  size_t bytes = *static_cast<size_t*>(extra[3]);
  std::string held(static_cast<const char*>(arguments), bytes);
  Function one = *static_cast<Function*>(function);
  Enqueue(stream, [=] {
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    const std::string& code = one.code->bytes;
    if (!one.code->is_loaded) Complain("a kernel runs whose code object is unloaded");
    ++fake->launches;
    fake->log += one.name + "\n";
    int failed = fake->launcher ? fake->launcher(code.data(), code.size(), one.name.c_str(), grid, block, shared,
                                                 held.data(), held.size())
                                : 0;
    if (failed) fake->pending_error = kLaunchFailure;
  });
  return 0;
}

int hipStreamBeginCapture(void* handle, int mode) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream || stream == &fake->none || stream->captured || mode != 1) return kInvalidValue;
  stream->captured = std::make_unique<Graph>();
  stream->is_valid = true;
  capturing = stream;
  ++fake->captures;
  return 0;
}

int hipStreamEndCapture(void* handle, void** graph) {
  Lock lock;
  Stream* stream = Known(handle);
  *graph = nullptr;
  if (!stream || !stream->captured) return kInvalidValue;
  capturing = nullptr;
  std::unique_ptr<Graph> captured = std::move(stream->captured);
  if (int status = Planned(__func__)) return status;  // which ends it all the same
  if (!stream->is_valid) return kCaptureInvalidated;
  *graph = captured.release();
  return 0;
}

int hipGraphInstantiate(void** exec, void* graph, void*, char*, size_t) {
  ENTER;
  *exec = new Graph(*static_cast<Graph*>(graph));
  return 0;
}

int hipGraphLaunch(void* exec, void* handle) {
  ENTER;
  Stream* stream = Known(handle);
  if (!stream) return kInvalidHandle;
  ++fake->graph_launches;
  std::vector<Work> nodes = static_cast<Graph*>(exec)->nodes;
  for (Work& node : nodes) Enqueue(stream, node);
  return 0;
}

int hipGraphDestroy(void* graph) {
  ENTER;
  delete static_cast<Graph*>(graph);
  return 0;
}

int hipGraphExecDestroy(void* exec) {
  ENTER;
  delete static_cast<Graph*>(exec);
  return 0;
}

}  // extern "C"
