// Ascending indices as one stream of bits, equal byte for byte to that of dgc/codec/elias_fano.py,
// which describes the format.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "checks.h"

namespace dgc {
namespace {

using at::Tensor;

static_assert(std::endian::native == std::endian::little, "the stream is read and written in words of the machine");

constexpr int64_t kWord = 64;
constexpr int64_t kSlack = 16;  // bytes behind a stream, so that words may reach over its end

// The stream from `bit` on: at least 57 bits are valid.
inline uint64_t load(const uint8_t* stream, int64_t bit) {
  uint64_t word;
  std::memcpy(&word, stream + bit / 8, sizeof word);
  return word >> (bit % 8);
}

inline void store(uint8_t* stream, int64_t bit, uint64_t field) {
  uint64_t word;
  std::memcpy(&word, stream + bit / 8, sizeof word);
  word |= field << (bit % 8);
  std::memcpy(stream + bit / 8, &word, sizeof word);
}

constexpr int64_t kHalf = 32;  // a field is moved in halves, since a load has only 57 valid bits

inline uint64_t mask(int64_t bits) { return (uint64_t{1} << bits) - 1; }

void check(int64_t numel, int64_t count, int64_t low) {
  TORCH_CHECK(0 <= low && low < kWord && 0 <= count && count <= numel, "dgc: ", count, " of ", numel,
              " indices cannot be packed with ", low, " low bits");
}

Tensor encode(const Tensor& indices, int64_t numel, int64_t low) {
  check_flat(indices, at::kLong, "indices");
  const int64_t count = indices.numel();
  check(numel, count, low);
  // `indices` lies in memory, so count * low is far from overflowing.
  TORCH_CHECK((numel >> low) < std::numeric_limits<int64_t>::max() / 2, "dgc: ", numel, " elements cannot be packed with ",
              low, " low bits");
  const int64_t begin = count * low, bits = begin + count + (numel >> low), bytes = (bits + 7) / 8;
  Tensor stream = at::zeros({bytes + kSlack}, at::kByte);
  uint8_t* out = stream.data_ptr<uint8_t>();
  const int64_t* at = indices.const_data_ptr<int64_t>();
  const int64_t first = std::min(low, kHalf), rest = low - first;
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(at[i] >= 0 && at[i] < numel, "dgc: index ", at[i], " lies outside the ", numel, " elements");
    const uint64_t index = at[i];
    store(out, i * low, index & mask(first));
    if (rest) store(out, i * low + first, (index >> first) & mask(rest));
    const int64_t one = begin + static_cast<int64_t>(index >> low) + i;
    out[one / 8] |= static_cast<uint8_t>(1 << (one % 8));
  }
  return stream.narrow(0, 0, bytes);
}

// The indices, and the number of ones in the unary part; the caller refuses one that is not count.
std::tuple<Tensor, int64_t> decode(const Tensor& section, int64_t numel, int64_t count, int64_t low) {
  check_flat(section, at::kByte, "a section");
  check(numel, count, low);
  // In this order no product overflows, whatever values a damaged header has.
  const int64_t available = section.numel() * 8;
  TORCH_CHECK(count <= available && (low == 0 || count <= available / low) && (numel >> low) <= available,
              "dgc: ", count, " indices do not fit ", section.numel(), " bytes");
  const int64_t begin = count * low, end = begin + count + (numel >> low);
  TORCH_CHECK(end <= available, "dgc: ", count, " indices do not fit ", section.numel(), " bytes");
  std::vector<uint8_t> stream(section.numel() + kSlack, 0);
  if (section.numel()) std::memcpy(stream.data(), section.const_data_ptr<uint8_t>(), section.numel());
  Tensor indices = at::empty({count}, at::kLong);
  int64_t* out = indices.data_ptr<int64_t>();
  const int64_t first = std::min(low, kHalf), rest = low - first;
  int64_t ones = 0;
  for (int64_t bit = begin; bit < end; bit += kHalf) {
    uint64_t word = load(stream.data(), bit) & mask(std::min(kHalf, end - bit));
    for (; word; word &= word - 1, ++ones) {
      if (ones == count) return {indices, ones + 1};
      const uint64_t high = bit + std::countr_zero(word) - begin - ones;
      uint64_t index = load(stream.data(), ones * low) & mask(first);
      if (rest) index |= (load(stream.data(), ones * low + first) & mask(rest)) << first;
      out[ones] = static_cast<int64_t>(high << low | index);
    }
  }
  return {indices, ones};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dgc, library) {
  library.def("elias_fano_encode(Tensor indices, int numel, int low) -> Tensor");
  library.def("elias_fano_decode(Tensor section, int numel, int count, int low) -> (Tensor, int)");
}

TORCH_LIBRARY_IMPL(dgc, CPU, library) {
  library.impl("elias_fano_encode", encode);
  library.impl("elias_fano_decode", decode);
}

}  // namespace dgc
