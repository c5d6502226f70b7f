// tvm_fusion_run: load an artifact, run it on .npy files or random numbers, time it, write its outputs.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "device.h"
#include "elements.h"
#include "error.h"
#include "model.h"
#include "npy.h"

namespace {

namespace ffi = tvm::ffi;
using tvm_fusion::Extents;
using tvm_fusion::UserError;

constexpr char kUsage[] =
    "usage: tvm_fusion_run ARTIFACT [--function NAME] [--input NAME=FILE.npy]... [--dim NAME=N]...\n"
    "                      [--seed N] [--warmup N] [--repeat N] [--output FOLDER]\n"
    "Runs an artifact that `tvm-fusion compile` wrote. Inputs that are not given are random numbers; symbolic\n"
    "dimensions that no given input fixes are as small as allowed. --output writes each output as NAME.npy\n"
    "into an existing folder, with _ for characters that file names should not have.\n";

struct Options {
  std::string artifact, function, output;
  std::map<std::string, std::string> files;
  Extents extents;
  int64_t seed = 0, warmup = 2, repeat = 10;
};

int64_t Number(const std::string& option, const std::string& text, int64_t least) {
  try {
    size_t used = 0;
    int64_t value = std::stoll(text, &used);
    if (used == text.size() && value >= least) return value;
  } catch (const std::logic_error&) {
  }
  throw UserError(option + " " + text + "; expected a number of at least " + std::to_string(least) + ".");
}

std::pair<std::string, std::string> Pair(const std::string& option, const std::string& text, const char* form) {
  size_t equals = text.find('=');  // as in Python, names end at the first one
  if (equals == std::string::npos) throw UserError(option + " " + text + "; expected " + form + ".");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i];
    if (option.rfind("--", 0) != 0) {
      if (!options.artifact.empty()) throw UserError("unexpected argument '" + option + "'; see --help.");
      options.artifact = option;
      continue;
    }
    if (i + 1 == argc) throw UserError("option " + option + " lacks its value; see --help.");
    std::string value = argv[++i];
    if (option == "--function") {
      options.function = value;
    } else if (option == "--output") {
      options.output = value;
    } else if (option == "--input") {
      options.files.insert(Pair(option, value, "NAME=FILE.npy"));
    } else if (option == "--dim") {
      auto [name, extent] = Pair(option, value, "NAME=N");
      options.extents[name] = Number(option, extent, 0);
    } else if (option == "--seed") {
      options.seed = Number(option, value, 0);
    } else if (option == "--warmup") {
      options.warmup = Number(option, value, 0);
    } else if (option == "--repeat") {
      options.repeat = Number(option, value, 1);
    } else {
      throw UserError("unknown option " + option + "; see --help.");
    }
  }
  if (options.artifact.empty()) throw UserError("no artifact; see --help.");
  return options;
}

std::map<std::string, ffi::Tensor> Inputs(const tvm_fusion::Model& model, const Options& options,
                                          const tvm_fusion::FunctionEntry& entry) {
  std::map<std::string, ffi::Tensor> inputs;
  Extents extents;
  for (const auto& [name, dim] : model.manifest().dims) {
    extents[name] = std::clamp<int64_t>(dim.step, dim.low, dim.high);  // not empty where that is a choice
  }
  for (const tvm_fusion::TensorSpec& spec : entry.inputs) {
    auto file = options.files.find(spec.name);
    if (file == options.files.end()) continue;
    ffi::Tensor tensor = tvm_fusion::ReadNpy(file->second, spec.dtype, spec.Held());
    for (size_t i = 0; i < spec.shape.size() && i < tensor.shape().size(); ++i) {
      if (tvm_fusion::IsName(spec.shape[i])) extents[std::get<std::string>(spec.shape[i])] = tensor.shape()[i];
    }
    inputs.emplace(spec.name, tensor);
  }
  for (const auto& [name, path] : options.files) {
    if (!inputs.count(name)) throw UserError("unknown input '" + name + "'.");
  }
  for (const auto& [name, extent] : options.extents) {
    if (!model.manifest().dims.count(name)) throw UserError("--dim names '" + name + "', which is no dimension.");
    tvm_fusion::DimRange range = model.manifest().dims.at(name);
    if (!range.Holds(extent)) {
      throw UserError("--dim " + name + "=" + std::to_string(extent) + "; expected " + range.Text() + ".");
    }
    extents[name] = extent;
  }
  unsigned seed = static_cast<unsigned>(options.seed);
  for (const tvm_fusion::TensorSpec& spec : entry.inputs) {
    if (inputs.count(spec.name)) continue;
    tvm_fusion::Shape shape;
    for (const tvm_fusion::Extent& extent : spec.shape) {
      shape.push_back(tvm_fusion::Evaluate(extent, extents).value_or(1));
    }
    DLDataType dtype = tvm_fusion::ParseDtype(spec.Held());
    tvm_fusion::Bytes(shape, dtype, "input '" + spec.name + "'");
    ffi::Tensor tensor = tvm_fusion::EmptyOnHost(shape, dtype);
    tvm_fusion::FillRandom(tensor, spec.dtype, seed++);
    inputs.emplace(spec.name, tensor);
  }
  return inputs;
}

// A file's name in the output folder and never outside of it.
std::string FileName(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && !std::strchr("._-", c)) c = '_';
  }
  return (name.empty() || name[0] == '.' ? "_" + name : name) + ".npy";
}

void Report(const tvm_fusion::NamedTensors& outputs, const std::vector<tvm_fusion::TensorSpec>& specs,
            const std::string& folder) {
  std::map<std::string, int> uses;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, result] = outputs[i];
    const std::string& dtype = specs[i].dtype;
    ffi::Tensor tensor = tvm_fusion::CopyTo(result, DLDevice{kDLCPU, 0});
    std::vector<double> values = tvm_fusion::Values(tensor, dtype);
    double sum = 0, squares = 0;
    for (double value : values) sum += value;
    double mean = values.empty() ? 0 : sum / values.size();
    for (double value : values) squares += (value - mean) * (value - mean);
    tvm_fusion::Shape shape(tensor.shape().begin(), tensor.shape().end());
    std::printf("  %s: %s %s, mean %.4g, std %.4g\n", name.c_str(), dtype.c_str(),
                tvm_fusion::ToString(shape).c_str(), mean, values.empty() ? 0 : std::sqrt(squares / values.size()));
    auto nan = std::count_if(values.begin(), values.end(), [](double v) { return std::isnan(v); });
    auto inf = std::count_if(values.begin(), values.end(), [](double v) { return std::isinf(v); });
    if (nan || inf) {
      std::printf("  warning: %s: %lld NaN and %lld infinite of %zu values\n", name.c_str(),
                  static_cast<long long>(nan), static_cast<long long>(inf), values.size());
    }
    if (folder.empty()) continue;
    std::string file = FileName(name);
    if (int number = uses[file]++) file = std::to_string(number) + "_" + file;
    tvm_fusion::WriteNpy(folder + "/" + file, tensor, dtype);
  }
}

// Says what extents were timed: those of random inputs are the smallest allowed unless --dim says otherwise.
void ReportExtents(const tvm_fusion::Model& model, const std::map<std::string, ffi::Tensor>& inputs,
                   const tvm_fusion::FunctionEntry& entry) {
  Extents extents;
  for (const tvm_fusion::TensorSpec& spec : entry.inputs) {
    for (size_t i = 0; i < spec.shape.size(); ++i) {
      if (!tvm_fusion::IsName(spec.shape[i])) continue;
      extents[std::get<std::string>(spec.shape[i])] = inputs.at(spec.name).shape()[i];
    }
  }
  std::string line;
  for (const auto& [name, dim] : model.manifest().dims) {
    auto found = extents.find(name);
    if (found == extents.end()) continue;
    line += (line.empty() ? "  at " : ", ") + name + "=" + std::to_string(found->second) + " (of " +
            std::to_string(dim.low) + ".." + std::to_string(dim.high) + ")";
  }
  if (!line.empty()) std::printf("%s; others: --dim NAME=N\n", line.c_str());
}

void Run(const Options& options) {
  tvm_fusion::Model model(options.artifact);
  std::string function = options.function.empty() ? model.MainFunction() : options.function;
  std::map<std::string, ffi::Tensor> inputs = Inputs(model, options, model.Entry(function));
  for (int64_t i = 0; i < options.warmup; ++i) model.Run(inputs, function);
  std::vector<double> milliseconds;
  tvm_fusion::NamedTensors outputs;
  for (int64_t i = 0; i < options.repeat; ++i) {
    auto start = std::chrono::steady_clock::now();
    outputs = model.Run(inputs, function);
    model.Synchronize();
    std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(taken.count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("latency of %zu run%s: min %.3g, median %.3g, max %.3g ms\n", milliseconds.size(),
              milliseconds.size() == 1 ? "" : "s", milliseconds.front(), milliseconds[milliseconds.size() / 2],
              milliseconds.back());
  ReportExtents(model, inputs, model.Entry(function));
  Report(outputs, model.Entry(function).outputs, options.output);
}

// Ctrl-C at any moment: one line, exit code 130, no file half written.
void Interrupted(int) {
  if (const char* path = tvm_fusion::unfinished) unlink(path);
  constexpr char kLine[] = "tvm_fusion_run: interrupted\n";
  if (write(2, kLine, sizeof(kLine) - 1) < 0) {
    // Nobody reads it.
  }
  _exit(128 + SIGINT);
}

// Leaves at once: on exit(), TVM's idle threads would go on spinning for 300,000 calls of sched_yield
// before they look whether they are to end, which takes a minute where many processes want the cores.
[[noreturn]] void Leave(int code) {
  std::cout.flush();
  if (std::fflush(stdout) != 0 && code == 0) {
    std::cerr << "tvm_fusion_run: cannot write to the standard output.\n";
    code = 2;
  }
  _exit(code);
}

int Main(int argc, char** argv) {
  if (std::any_of(argv + 1, argv + argc, [](const char* word) { return !std::strcmp(word, "--help"); })) {
    std::cout << kUsage;
    return 0;
  }
  if (std::signal(SIGINT, Interrupted) == SIG_IGN) std::signal(SIGINT, SIG_IGN);
  try {
    Run(Parse(argc, argv));
    return 0;
  } catch (const UserError& error) {
    std::cerr << "tvm_fusion_run: " << error.what() << "\n";
    return 2;
  } catch (const ffi::Error& error) {
    if (tvm_fusion::IsSentence(error)) {
      std::cerr << "tvm_fusion_run: " << error.message() << "\n";
      return 2;
    }
    std::cerr << "tvm_fusion_run: the model failed: " << error.message() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "tvm_fusion_run: " << error.what() << "\n";
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) { Leave(Main(argc, argv)); }
