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
#include "processor.h"
#include "updates.h"

namespace dgc {
namespace {

using at::Tensor;

// Elements per thread: below this, starting a second thread costs more than it saves.
constexpr int64_t kGrain = 32768;

// Bytes from which on new buffers of a memory are written past the caches.
constexpr int64_t kStreamed = 1 << 22;

// Ranges of threads begin at multiples of it, so that blocks are aligned.
constexpr int64_t kAligned = 512;

const Kernels& kernels() {
#ifdef DGC_X86
  if (has_avx512()) return avx512_kernels();
  if (has_avx2()) return avx2_kernels();
#endif
  return baseline_kernels();
}

ApplyLoop apply_loop() {
#ifdef DGC_X86
  if (has_avx512()) return avx512_apply;
  if (has_avx2()) return avx2_apply;
#endif
  return baseline_apply;
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

// Two keys of random numbers where the buffers are bfloat16; none where they are float32.
Keys keys_of(at::IntArrayRef rounding, bool is_narrow) {
  TORCH_CHECK(rounding.size() == (is_narrow ? 2 : 0),
              "dgc: a memory in bfloat16 needs two keys of random numbers, and one in float32 takes none, got ",
              rounding.size());
  if (!is_narrow) return {0, 0};
  return {static_cast<uint32_t>(rounding[0]), static_cast<uint32_t>(rounding[1])};
}

Memory memory_of(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m,
                 at::IntArrayRef rounding) {
  Memory memory{};
  TORCH_CHECK(rule >= 0 && rule <= 2, "dgc: there is no rule ", rule);
  memory.rule = static_cast<Rule>(rule);
  memory.momentum = static_cast<float>(m);
  TORCH_CHECK(!gradients.empty(), "dgc: there is no gradient");
  memory.type = type_of(gradients[0]);
  memory.is_narrow = v.scalar_type() == at::kBFloat16;
  memory.keys = keys_of(rounding, memory.is_narrow);
  check_flat(v, memory.is_narrow ? at::kBFloat16 : at::kFloat, "a memory's buffer");
  TORCH_CHECK(u.has_value() == (memory.rule != Rule::kPlain), "dgc: every rule but the plain one needs a momentum buffer, and the plain one takes none");
  if (u.has_value()) {
    check_flat(*u, v.scalar_type(), "a memory's buffer");
    TORCH_CHECK(u->numel() == v.numel(), "dgc: ", u->numel(), " elements of momentum, ", v.numel(), " accumulated");
    memory.u = u->data_ptr();
  }
  memory.gradient = pieces_of<const void>(gradients, gradients[0].scalar_type(), v.numel(),
                                          [](const Tensor& t) { return t.const_data_ptr(); });
  memory.v = memory.new_v = v.data_ptr();
  memory.new_u = memory.u;
  return memory;
}

// Write the updated buffers to others, v's first, in the place of their own.
void write_to(Memory* memory, at::TensorList into, const Tensor& v) {
  const size_t wanted = memory->rule == Rule::kPlain ? 1 : 2;
  TORCH_CHECK(into.size() == wanted, "dgc: ", wanted, " new buffers are expected, got ", into.size());
  for (const Tensor& each : into) {
    check_flat(each, v.scalar_type(), "a memory's new buffer");
    TORCH_CHECK(each.numel() == v.numel(), "dgc: ", each.numel(), " elements of a new buffer, ", v.numel(), " accumulated");
  }
  memory->new_v = into[0].data_ptr();
  if (wanted == 2) memory->new_u = into[1].data_ptr();
  memory->streams = static_cast<int64_t>(v.nbytes()) >= kStreamed;
}

using Search = std::function<void(int64_t begin, int64_t end, Found*)>;
using Selection = std::tuple<Tensor, Tensor, int64_t, bool>;

// One range of positions per thread. The results are concatenated in order of position, so that the
// first `limit` of them do not depend on the number of threads.
Selection search(int64_t numel, int64_t limit, const Search& one_range) {
  const int64_t ranges = std::clamp<int64_t>(numel / kGrain, 1, at::get_num_threads());
  std::vector<Found> found(ranges);
  const auto begin = [&](int64_t range) {
    return range == ranges ? numel : numel * range / ranges / kAligned * kAligned;
  };
  at::parallel_for(0, ranges, 1, [&](int64_t first, int64_t last) {
    for (int64_t range = first; range < last; ++range) one_range(begin(range), begin(range + 1), &found[range]);
  });
  int64_t count = 0, stored = 0;
  bool is_finite = true;
  for (const Found& part : found) {
    count += part.count;
    is_finite = is_finite && part.is_finite;
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
  return {indices, values, count, is_finite};
}

Selection accumulate(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m,
                     double threshold, int64_t limit, at::TensorList into, at::IntArrayRef rounding) {
  Memory memory = memory_of(v, gradients, u, rule, m, rounding);
  if (!into.empty()) write_to(&memory, into, v);
  return search(v.numel(), limit, [&](int64_t begin, int64_t end, Found* found) {
    kernels().accumulate(memory, begin, end, static_cast<float>(threshold), limit, found);
  });
}

std::tuple<Tensor, Tensor, int64_t> collect(const Tensor& values, double threshold, int64_t limit) {
  const bool is_narrow = values.scalar_type() == at::kBFloat16;
  check_flat(values, is_narrow ? at::kBFloat16 : at::kFloat, "values");
  const void* data = values.const_data_ptr();
  const float least = static_cast<float>(threshold);
  auto [indices, chosen, count, _] = search(values.numel(), limit, [&](int64_t begin, int64_t end, Found* found) {
    if (is_narrow) {
      kernels().collect_narrow(static_cast<const uint16_t*>(data), begin, end, least, limit, found);
    } else {
      kernels().collect(static_cast<const float*>(data), begin, end, least, limit, found);
    }
  });
  return {indices, chosen, count};
}

Tensor sample(const Tensor& v, at::TensorList gradients, const std::optional<Tensor>& u, int64_t rule, double m,
              at::IntArrayRef rounding, const Tensor& positions) {
  const Memory memory = memory_of(v, gradients, u, rule, m, rounding);
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

// The data of a contiguous float32 tensor of `numel` elements.
float* data_of(const Tensor& tensor, int64_t numel) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kFloat &&
                  tensor.numel() == numel,
              "dgc: an optimizer's step takes contiguous float32 tensors of the size of their parameter, got ",
              tensor.scalar_type(), " ", tensor.sizes());
  TORCH_CHECK(is_aligned(tensor), "dgc: a tensor of a step does not lie at a multiple of the size of its elements: clone it");
  return tensor.data_ptr<float>();
}

bool needs_buffer(Step step) {
  return step != Step::kNone && step != Step::kScaled && step != Step::kDecoupled;
}

// The parameters of a bucket, one after another. `buffers` are those of the steps that need one, in
// order; `settings` are kSettings numbers a parameter.
std::vector<Target> targets_of(at::TensorList parameters, at::TensorList buffers, at::IntArrayRef steps,
                               at::ArrayRef<double> settings) {
  TORCH_CHECK(parameters.size() == steps.size() && parameters.size() * kSettings == settings.size(),
              "dgc: a step and ", kSettings, " settings are expected for each of ", parameters.size(), " parameters");
  std::vector<Target> targets;
  int64_t begin = 0;
  size_t used = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t numel = parameters[i].numel();
    TORCH_CHECK(steps[i] >= 0 && steps[i] < kSteps, "dgc: there is no step ", steps[i]);
    Target target{static_cast<Step>(steps[i]), nullptr, nullptr, begin, {}};
    if (target.step != Step::kNone) target.w = data_of(parameters[i], numel);
    if (needs_buffer(target.step)) {
      TORCH_CHECK(used < buffers.size(), "dgc: a buffer of an optimizer is missing");
      target.b = data_of(buffers[used++], numel);
    }
    for (int64_t s = 0; s < kSettings; ++s) target.settings[s] = static_cast<float>(settings[i * kSettings + s]);
    targets.push_back(target);
    begin += numel;
  }
  TORCH_CHECK(used == buffers.size(), "dgc: ", buffers.size(), " buffers of an optimizer, ", used, " are used");
  targets.push_back({Step::kNone, nullptr, nullptr, begin, {}});
  return targets;
}

// Each element is updated by one thread, so that the result does not depend on their number.
void apply(at::TensorList parameters, at::TensorList buffers, at::IntArrayRef steps, at::ArrayRef<double> settings,
           at::TensorList indices, at::TensorList values, double scale, const std::optional<Tensor>& gradient) {
  const std::vector<Target> targets = targets_of(parameters, buffers, steps, settings);
  const int64_t numel = targets.back().begin;
  TORCH_CHECK(indices.size() == values.size(), "dgc: indices of ", indices.size(), " contributions, values of ", values.size());
  Mean mean{nullptr, {}, static_cast<float>(scale)};
  if (gradient.has_value()) {
    check_flat(*gradient, at::kFloat, "a gradient");
    TORCH_CHECK(gradient->numel() == numel && indices.empty(), "dgc: a gradient of ", gradient->numel(), " elements without contributions is expected to have ", numel);
    mean.dense = gradient->const_data_ptr<float>();
  }
  for (size_t c = 0; c < indices.size(); ++c) {
    check_positions(indices[c], numel);
    check_flat(values[c], at::kFloat, "the values of a contribution");
    const int64_t* at = indices[c].const_data_ptr<int64_t>();
    const int64_t count = indices[c].numel();
    TORCH_CHECK(values[c].numel() == count, "dgc: a contribution has ", count, " indices and ", values[c].numel(), " values");
    TORCH_CHECK(std::is_sorted(at, at + count), "dgc: the indices of a contribution do not ascend");
    mean.contributions.push_back({at, values[c].const_data_ptr<float>(), count});
  }
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) { apply_loop()(targets, mean, begin, end); });
}

}  // namespace

TORCH_LIBRARY(dgc, library) {
  library.def(
      "accumulate(Tensor(a!) accumulated, Tensor[] gradients, Tensor(b!)? momentum_buffer, int rule, float momentum, "
      "float threshold, int limit, Tensor(c!)[] into, int[] rounding) -> (Tensor, Tensor, int, bool)");
  library.def("collect(Tensor values, float threshold, int limit) -> (Tensor, Tensor, int)");
  library.def(
      "sample(Tensor accumulated, Tensor[] gradients, Tensor? momentum_buffer, int rule, float momentum, "
      "int[] rounding, Tensor positions) -> Tensor");
  library.def("finite(Tensor[] tensors) -> bool");
  library.def("holders(Tensor tensor) -> int");
  library.def("spread(Tensor(a!)[] pieces, Tensor[] indices, Tensor[] values, float scale) -> ()");
  library.def(
      "step(Tensor(a!) parameter, Tensor gradient, Tensor(b!) buffer, float rate, float momentum, float decay, "
      "bool nesterov) -> ()");
  library.def(
      "apply(Tensor(a!)[] parameters, Tensor(b!)[] buffers, int[] steps, float[] settings, Tensor[] indices, "
      "Tensor[] values, float scale, Tensor? gradient) -> ()");
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
  library.impl("apply", apply);
}

}  // namespace dgc
