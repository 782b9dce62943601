// The operators torch.ops.dgc: they check their arguments, divide the work among threads, and call the
// loops in kernels.cpp. dgc/ops/reference.py is the same in plain PyTorch.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "checks.h"
#include "kernels.h"

namespace dgc {
namespace {

using at::Tensor;

// Elements per thread: below this, starting a second thread costs more than it saves.
constexpr int64_t kGrain = 32768;

const Kernels& kernels() {
#ifdef DGC_X86
  static const Kernels& chosen =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
          ? avx512_kernels()
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? avx2_kernels()
                                                                         : baseline_kernels();
  return chosen;
#else
  return baseline_kernels();
#endif
}

void check_positions(const Tensor& positions, uint64_t numel) {
  check_flat(positions, at::kLong, "positions");
  const int64_t* at = positions.const_data_ptr<int64_t>();
  const bool inside =
      std::all_of(at, at + positions.numel(), [&](int64_t i) { return static_cast<uint64_t>(i) < numel; });
  TORCH_CHECK(inside, "dgc: a position lies outside the ", numel, " elements of the tensor");
}

template <typename T, typename Data>
Pieces<T> pieces_of(at::TensorList tensors, at::ScalarType type, int64_t numel, Data data) {
  Pieces<T> pieces;
  int64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    check_flat(tensor, type, "a piece of a gradient");
    pieces.push_back({data(tensor), begin});
    begin += tensor.numel();
  }
  TORCH_CHECK(begin == numel, "dgc: a gradient of ", begin, " elements, ", numel, " are expected");
  pieces.push_back({nullptr, begin});
  return pieces;
}

Type type_of(const Tensor& gradient) {
  switch (gradient.scalar_type()) {
    case at::kFloat: return Type::kFloat32;
    case at::kBFloat16: return Type::kBFloat16;
    case at::kHalf: return Type::kFloat16;
    default: TORCH_CHECK(false, "dgc: a gradient of type ", gradient.scalar_type(), " is not supported");
  }
}

Memory memory_of(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m) {
  Memory memory{};
  TORCH_CHECK(rule >= 0 && rule <= 2, "dgc: there is no rule ", rule);
  memory.rule = static_cast<Rule>(rule);
  memory.momentum = static_cast<float>(m);
  TORCH_CHECK(!gradients.empty(), "dgc: there is no gradient");
  memory.type = type_of(gradients[0]);
  check_flat(v, at::kFloat, "a memory's buffer");
  TORCH_CHECK(u.has_value() == (memory.rule != Rule::kPlain), "dgc: every rule but the plain one needs a momentum buffer, and the plain one takes none");
  if (u.has_value()) {
    check_flat(*u, at::kFloat, "a memory's buffer");
    TORCH_CHECK(u->numel() == v.numel(), "dgc: ", u->numel(), " elements of momentum, ", v.numel(), " accumulated");
    memory.u = u->data_ptr<float>();
  }
  memory.gradient = pieces_of<const void>(gradients, gradients[0].scalar_type(), v.numel(),
                                          [](const Tensor& t) { return t.const_data_ptr(); });
  memory.v = v.data_ptr<float>();
  return memory;
}

using Search = std::function<void(int64_t begin, int64_t end, Found*)>;
using Selection = std::tuple<Tensor, Tensor, int64_t>;

// One range of positions per thread. The results are concatenated in order of position, so that the
// first `limit` of them do not depend on the number of threads.
Selection search(int64_t numel, int64_t limit, const Search& one_range) {
  const int64_t ranges = std::clamp<int64_t>(numel / kGrain, 1, at::get_num_threads());
  std::vector<Found> found(ranges);
  at::parallel_for(0, ranges, 1, [&](int64_t first, int64_t last) {
    for (int64_t range = first; range < last; ++range) {
      one_range(numel * range / ranges, numel * (range + 1) / ranges, &found[range]);
    }
  });
  int64_t count = 0, stored = 0;
  for (const Found& part : found) {
    count += part.count;
    stored += static_cast<int64_t>(part.values.size());
  }
  stored = std::min(stored, limit);
  Tensor indices = at::empty({stored}, at::kLong), values = at::empty({stored}, at::kFloat);
  int64_t written = 0;
  for (const Found& part : found) {
    const int64_t take = std::min<int64_t>(part.values.size(), stored - written);
    std::copy_n(part.indices.begin(), take, indices.data_ptr<int64_t>() + written);
    std::copy_n(part.values.begin(), take, values.data_ptr<float>() + written);
    written += take;
  }
  return {indices, values, count};
}

Selection accumulate(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m,
                     double threshold, int64_t limit) {
  const Memory memory = memory_of(v, gradients, u, rule, m);
  return search(v.numel(), limit, [&](int64_t begin, int64_t end, Found* found) {
    kernels().accumulate(memory, begin, end, static_cast<float>(threshold), limit, found);
  });
}

Selection collect(const Tensor& values, double threshold, int64_t limit) {
  check_flat(values, at::kFloat, "values");
  const float* data = values.const_data_ptr<float>();
  return search(values.numel(), limit, [&](int64_t begin, int64_t end, Found* found) {
    kernels().collect(data, begin, end, static_cast<float>(threshold), limit, found);
  });
}

Tensor sample(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m,
              const Tensor& positions) {
  const Memory memory = memory_of(v, gradients, u, rule, m);
  check_positions(positions, v.numel());
  const int64_t count = positions.numel();
  const int64_t* at = positions.const_data_ptr<int64_t>();
  Tensor out = at::empty({count}, at::kFloat);
  float* data = out.data_ptr<float>();
  at::parallel_for(0, count, kGrain / 16, [&](int64_t begin, int64_t end) {
    kernels().sample(memory, at, begin, end, data);
  });
  return out;
}

bool finite(at::TensorList tensors) {
  for (const Tensor& tensor : tensors) {
    check_flat(tensor, tensor.scalar_type(), "a gradient");
    const Type type = type_of(tensor);
    const void* data = tensor.const_data_ptr();
    std::atomic<bool> so_far{true};
    at::parallel_for(0, tensor.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if (!kernels().finite(type, data, begin, end)) so_far = false;
    });
    if (!so_far) return false;
  }
  return true;
}

// The number of references to the storage of a tensor.
int64_t holders(const Tensor& tensor) { return static_cast<int64_t>(tensor.storage().use_count()); }

// Contributions are added one after another, in one thread, so that the order of additions is fixed.
// The pieces are zeroed by memset, which does not read what it overwrites.
void spread(at::TensorList pieces, at::TensorList indices, at::TensorList values, double scale) {
  int64_t numel = 0;
  for (const Tensor& piece : pieces) numel += piece.numel();
  const Pieces<float> places =
      pieces_of<float>(pieces, at::kFloat, numel, [](const Tensor& t) { return t.data_ptr<float>(); });
  TORCH_CHECK(indices.size() == values.size(), "dgc: indices of ", indices.size(), " contributions, values of ", values.size());
  for (size_t c = 0; c < indices.size(); ++c) {
    check_positions(indices[c], numel);
    check_flat(values[c], at::kFloat, "the values of a contribution");
    TORCH_CHECK(values[c].numel() == indices[c].numel(), "dgc: a contribution has ", indices[c].numel(),
                " indices and ", values[c].numel(), " values");
  }
  for (const Tensor& piece : pieces) {
    float* data = piece.data_ptr<float>();
    at::parallel_for(0, piece.numel(), kGrain, [&](int64_t begin, int64_t end) {
      std::memset(data + begin, 0, (end - begin) * sizeof(float));
    });
  }
  for (size_t c = 0; c < indices.size(); ++c) {
    kernels().add(places, indices[c].const_data_ptr<int64_t>(), values[c].const_data_ptr<float>(),
                  indices[c].numel(), static_cast<float>(scale));
  }
}

void step(const Tensor& parameter, const Tensor& gradient, const Tensor& buffer, double rate, double momentum,
          double decay, bool nesterov) {
  for (const Tensor& tensor : {parameter, gradient, buffer}) {
    TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kFloat &&
                    tensor.numel() == parameter.numel(),
                "dgc: a step takes contiguous float32 tensors of one size, got ", tensor.scalar_type(), " ",
                tensor.sizes());
    TORCH_CHECK(is_aligned(tensor), "dgc: a tensor of a step does not lie at a multiple of the size of its elements: clone it");
  }
  const DecayedStep given{parameter.data_ptr<float>(),   gradient.const_data_ptr<float>(), buffer.data_ptr<float>(),
                          static_cast<float>(rate),      static_cast<float>(momentum),     static_cast<float>(decay),
                          nesterov};
  at::parallel_for(0, parameter.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { kernels().step(given, begin, end); });
}

}  // namespace

TORCH_LIBRARY(dgc, library) {
  library.def(
      "accumulate(Tensor(a!) accumulated, Tensor[] gradients, Tensor(b!)? momentum_buffer, int rule, float momentum, "
      "float threshold, int limit) -> (Tensor, Tensor, int)");
  library.def("collect(Tensor values, float threshold, int limit) -> (Tensor, Tensor, int)");
  library.def(
      "sample(Tensor accumulated, Tensor[] gradients, Tensor? momentum_buffer, int rule, float momentum, "
      "Tensor positions) -> Tensor");
  library.def("finite(Tensor[] tensors) -> bool");
  library.def("holders(Tensor tensor) -> int");
  library.def("spread(Tensor(a!)[] pieces, Tensor[] indices, Tensor[] values, float scale) -> ()");
  library.def(
      "step(Tensor(a!) parameter, Tensor gradient, Tensor(b!) buffer, float rate, float momentum, float decay, "
      "bool nesterov) -> ()");
}

TORCH_LIBRARY_IMPL(dgc, CompositeExplicitAutograd, library) {  // on any device
  library.impl("holders", holders);
}

TORCH_LIBRARY_IMPL(dgc, CPU, library) {
  library.impl("accumulate", accumulate);
  library.impl("collect", collect);
  library.impl("sample", sample);
  library.impl("finite", finite);
  library.impl("spread", spread);
  library.impl("step", step);
}

}  // namespace dgc
