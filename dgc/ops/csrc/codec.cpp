// Parts of a codec beside the packing of indices: checking the order of indices, and writing values
// as whole numbers, byte for byte as dgc/codec/values/linear.py and qsgd.py, which describe them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "checks.h"
#include "uniform.h"

namespace dgc {
namespace {

using at::Tensor;

constexpr int64_t kScale = sizeof(float);
constexpr float kMost = std::numeric_limits<float>::max(), kTiny = std::numeric_limits<float>::min();

bool in_order(const Tensor& indices, int64_t numel) {
  check_flat(indices, at::kLong, "indices");
  const int64_t* at = indices.const_data_ptr<int64_t>();
  const int64_t count = indices.numel();
  bool ordered = count == 0 || (at[0] >= 0 && at[count - 1] < numel);
  for (int64_t i = 1; i < count; ++i) ordered &= at[i - 1] < at[i];
  return ordered;
}

// Where the numbers of a section begin, and how many of them a byte holds.
struct Layout {
  int64_t blocks, begin, per_byte, bytes;
};

Layout layout(int64_t count, int64_t bits, int64_t block) {
  TORCH_CHECK((bits == 2 || bits == 4 || bits == 8) && block > 0 && 0 <= count && count < std::numeric_limits<int64_t>::max() / 16,
              "dgc: ", count, " values cannot be written in blocks of ", block, ", ", bits, " bits each");
  const int64_t blocks = count / block + (count % block != 0), per_byte = 8 / bits;
  return {blocks, blocks * kScale, per_byte, blocks * kScale + (count + per_byte - 1) / per_byte};
}

// The largest number of so many bits, which layout() has checked.
float top_of(int64_t bits) { return static_cast<float>((1 << (bits - 1)) - 1); }

// The size of the steps of a block of values.
float step_of(const float* values, int64_t count, float top) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    finite &= std::fabs(values[i]) <= kMost;
  }
  return finite ? std::max(largest / top, kTiny) : std::numeric_limits<float>::quiet_NaN();
}

// The bytes of values, each divided by the step of its block and made whole by round(quotient, position).
template <typename Round>
Tensor encode(const Tensor& values, int64_t bits, int64_t block, const Round& round) {
  check_flat(values, at::kFloat, "values");
  const int64_t count = values.numel();
  const Layout place = layout(count, bits, block);
  Tensor section = at::zeros({place.bytes}, at::kByte);
  uint8_t* out = section.data_ptr<uint8_t>();
  const float* in = values.const_data_ptr<float>();
  const float top = top_of(bits);
  const int32_t field = (1 << bits) - 1;
  for (int64_t at = 0; at < place.blocks; ++at) {
    const int64_t first = at * block, last = std::min(first + block, count);
    const float step = step_of(in + first, last - first, top);
    std::memcpy(out + at * kScale, &step, sizeof step);
    for (int64_t i = first; i < last; ++i) {
      const float number = round(in[i] / step, i);
      const int32_t written = std::isnan(number) ? 0 : static_cast<int32_t>(number) & field;
      out[place.begin + i / place.per_byte] |= static_cast<uint8_t>(written << (i % place.per_byte * bits));
    }
  }
  return section;
}

Tensor linear_encode(const Tensor& values, int64_t bits, int64_t block) {
  // A half goes to the even number, as in torch.round.
  return encode(values, bits, block, [](float scaled, int64_t) { return std::nearbyint(scaled); });
}

Tensor qsgd_encode(const Tensor& values, int64_t bits, int64_t block, int64_t first_key, int64_t second_key) {
  layout(values.numel(), bits, block);
  const float top = top_of(bits);
  const uint32_t first = static_cast<uint32_t>(first_key), second = static_cast<uint32_t>(second_key);
  return encode(values, bits, block, [=](float scaled, int64_t position) {
    const uint32_t high = static_cast<uint32_t>(position >> 32);
    const uint32_t mixed = mix(mix(static_cast<uint32_t>(position) ^ first) ^ second ^ high);
    const float draw = static_cast<float>(mixed >> 8) * 0x1p-24f;
    const float lower = std::floor(scaled);
    const float number = lower + static_cast<float>(draw < scaled - lower);
    // The rounding of a step can put the largest value just above top.
    return std::isnan(number) ? number : std::clamp(number, -top, top);
  });
}

// The values, and whether every block has a valid step: NaN, or positive and finite.
std::tuple<Tensor, bool> linear_decode(const Tensor& section, int64_t count, int64_t bits, int64_t block) {
  check_flat(section, at::kByte, "a section");
  const Layout place = layout(count, bits, block);
  TORCH_CHECK(section.numel() == place.bytes, "dgc: ", count, " values do not fill ", section.numel(), " bytes");
  const uint8_t* in = section.const_data_ptr<uint8_t>();
  Tensor values = at::empty({count}, at::kFloat);
  float* out = values.data_ptr<float>();
  const int32_t sign = 1 << (bits - 1), field = (1 << bits) - 1;
  bool valid = true;
  for (int64_t at = 0; at < place.blocks; ++at) {
    float step;
    std::memcpy(&step, in + at * kScale, sizeof step);
    valid &= std::isnan(step) || (step > 0 && step <= kMost);
    const int64_t first = at * block, last = std::min(first + block, count);
    for (int64_t i = first; i < last; ++i) {
      const int32_t raw = in[place.begin + i / place.per_byte] >> (i % place.per_byte * bits) & field;
      out[i] = std::clamp(static_cast<float>((raw ^ sign) - sign) * step, -kMost, kMost);
    }
  }
  return {values, valid};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dgc, library) {
  library.def("in_order(Tensor indices, int numel) -> bool");
  library.def("linear_encode(Tensor values, int bits, int block) -> Tensor");
  library.def("qsgd_encode(Tensor values, int bits, int block, int first_key, int second_key) -> Tensor");
  library.def("linear_decode(Tensor section, int count, int bits, int block) -> (Tensor, bool)");
}

TORCH_LIBRARY_IMPL(dgc, CPU, library) {
  library.impl("in_order", in_order);
  library.impl("linear_encode", linear_encode);
  library.impl("qsgd_encode", qsgd_encode);
  library.impl("linear_decode", linear_decode);
}

}  // namespace dgc
