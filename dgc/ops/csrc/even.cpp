// Indices spread evenly over chunks as numbers of subsets, equal byte for byte to those of
// dgc/codec/even.py, which describes the code. Numbers are little-endian limbs of 64 bits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "checks.h"

namespace dgc {
namespace {

using at::Tensor;
using Wide = unsigned __int128;

constexpr int64_t kLimb = 64;
constexpr int64_t kMostChunk = 1 << 16;

// target[0 … n) += factor[0 … m) · by, which does not overflow; m <= n.
void add_product(uint64_t* target, int64_t n, const uint64_t* factor, int64_t m, uint64_t by) {
  uint64_t carry = 0;
  for (int64_t i = 0; i < m; ++i) {
    const Wide sum = static_cast<Wide>(factor[i]) * by + target[i] + carry;
    target[i] = static_cast<uint64_t>(sum);
    carry = static_cast<uint64_t>(sum >> kLimb);
  }
  for (int64_t i = m; carry && i < n; ++i) {
    target[i] += carry;
    carry = target[i] < carry;
  }
}

// target[0 … n) -= what[0 … m), which is not larger; m <= n.
void subtract(uint64_t* target, int64_t n, const uint64_t* what, int64_t m) {
  uint64_t borrow = 0;
  for (int64_t i = 0; i < n && (i < m || borrow); ++i) {
    const Wide taken = static_cast<Wide>(i < m ? what[i] : 0) + borrow;
    borrow = target[i] < taken;
    target[i] -= static_cast<uint64_t>(taken);
  }
}

bool is_less(const uint64_t* a, const uint64_t* b, int64_t n) {
  for (int64_t i = n - 1; i >= 0; --i) {
    if (a[i] != b[i]) return a[i] < b[i];
  }
  return false;
}

int64_t limbs_of(const uint64_t* number, int64_t n) {
  while (n > 1 && !number[n - 1]) --n;
  return n;
}

// quotient[0 … n) = number[0 … n) / by; number becomes the remainder.
void divide_by_limb(uint64_t* number, int64_t n, uint64_t by, uint64_t* quotient) {
  uint64_t rest = 0;
  for (int64_t i = n - 1; i >= 0; --i) {
    const Wide part = static_cast<Wide>(rest) << kLimb | number[i];
    quotient[i] = rest ? static_cast<uint64_t>(part / by) : number[i] / by;
    rest = static_cast<uint64_t>(part - static_cast<Wide>(quotient[i]) * by);
    number[i] = 0;
  }
  number[0] = rest;
}

// The same for a divisor of m limbs, the last of which is not zero (Knuth, volume 2, algorithm D).
// `scratch` has room for n + 1 + m limbs.
void divide(uint64_t* number, int64_t n, const uint64_t* by, int64_t m, uint64_t* quotient, uint64_t* scratch) {
  if (m == 1) return divide_by_limb(number, n, by[0], quotient);
  std::fill_n(quotient, n, 0);
  if (n < m) return;
  const int shift = std::countl_zero(by[m - 1]);
  const auto shifted = [shift](uint64_t high, uint64_t low) {
    return shift ? high << shift | low >> (kLimb - shift) : high;
  };
  uint64_t* u = scratch;
  uint64_t* v = scratch + n + 1;
  u[n] = shifted(0, number[n - 1]);
  for (int64_t i = n - 1; i > 0; --i) u[i] = shifted(number[i], number[i - 1]);
  u[0] = number[0] << shift;
  for (int64_t i = m - 1; i > 0; --i) v[i] = shifted(by[i], by[i - 1]);
  v[0] = by[0] << shift;
  for (int64_t j = n - m; j >= 0; --j) {
    const Wide top = static_cast<Wide>(u[j + m]) << kLimb | u[j + m - 1];
    Wide guess = u[j + m] >= v[m - 1] ? std::numeric_limits<uint64_t>::max() : top / v[m - 1];
    Wide rest = top - guess * v[m - 1];
    while (!(rest >> kLimb) && guess * v[m - 2] > (rest << kLimb | u[j + m - 2])) {
      --guess;
      rest += v[m - 1];
    }
    uint64_t borrow = 0, carry = 0;
    for (int64_t i = 0; i < m; ++i) {
      const Wide product = guess * v[i] + carry;
      carry = static_cast<uint64_t>(product >> kLimb);
      const Wide taken = static_cast<Wide>(static_cast<uint64_t>(product)) + borrow;
      borrow = u[i + j] < taken;
      u[i + j] -= static_cast<uint64_t>(taken);
    }
    const Wide taken = static_cast<Wide>(carry) + borrow;
    borrow = u[j + m] < taken;
    u[j + m] -= static_cast<uint64_t>(taken);
    if (borrow) {  // the guess was one too large
      --guess;
      uint64_t over = 0;
      for (int64_t i = 0; i < m; ++i) {
        const Wide sum = static_cast<Wide>(u[i + j]) + v[i] + over;
        u[i + j] = static_cast<uint64_t>(sum);
        over = static_cast<uint64_t>(sum >> kLimb);
      }
      u[j + m] += over;
    }
    quotient[j] = static_cast<uint64_t>(guess);
  }
  for (int64_t i = 0; i < n; ++i) {
    number[i] = i < m ? u[i] >> shift | (shift ? u[i + 1] << (kLimb - shift) : 0) : 0;
  }
}

// The subsets of so many elements of a block.
struct Subsets {
  int64_t limbs = 0;             // of each number here
  std::vector<uint64_t> total;   // how many subsets there are
  std::vector<uint64_t> before;  // by elements in the left half, from `least` on: subsets with more there
  int64_t least = 0, most = 0;
};

// A block of `size` elements and its halves. Tables are filled in as they are needed.
class Block {
 public:
  explicit Block(int64_t size) : size(size), by_count_(size + 1) {}

  const Subsets& of(int64_t count) {
    std::unique_ptr<Subsets>& found = by_count_[count];
    if (!found) found = make(count);
    return *found;
  }

  const int64_t size;
  Block* left = nullptr;
  Block* right = nullptr;

 private:
  std::unique_ptr<Subsets> make(int64_t count) {
    auto made = std::make_unique<Subsets>();
    if (count == 0 || count == size) {
      made->limbs = 1;
      made->total = {1};
      return made;
    }
    made->least = std::max<int64_t>(0, count - right->size);
    made->most = std::min(count, left->size);
    // C(s, q) is less than 2^s, and than 2^(q · bits of s) and the same for s - q; and a limb more.
    const int64_t few = std::min(count, size - count), digits = std::bit_width(static_cast<uint64_t>(size));
    const int64_t room = std::min(size, few * digits) / kLimb + 2;
    std::vector<uint64_t> total(room, 0), sums((made->most - made->least + 1) * room);
    for (int64_t held = made->most; held >= made->least; --held) {
      std::copy_n(total.begin(), room, sums.begin() + (held - made->least) * room);
      const Subsets& a = left->of(held);
      const Subsets& b = right->of(count - held);
      for (int64_t i = 0; i < b.limbs; ++i) add_product(total.data() + i, room - i, a.total.data(), a.limbs, b.total[i]);
    }
    made->limbs = limbs_of(total.data(), room);
    made->total.assign(total.begin(), total.begin() + made->limbs);
    for (int64_t held = made->least; held <= made->most; ++held) {
      const auto row = sums.begin() + (held - made->least) * room;
      made->before.insert(made->before.end(), row, row + made->limbs);
    }
    return made;
  }

  std::vector<std::unique_ptr<Subsets>> by_count_;
};

// The blocks of all sizes that occur, shared by all threads: `lock` is held while they are used.
class Blocks {
 public:
  Block* of(int64_t size) {
    std::unique_ptr<Block>& found = by_size_[size];
    if (!found) {
      found = std::make_unique<Block>(size);
      Block* made = found.get();
      if (size > 1) {
        made->left = of(size / 2);
        made->right = of(size - size / 2);
      }
    }
    return by_size_[size].get();
  }

  std::mutex lock;

 private:
  std::map<int64_t, std::unique_ptr<Block>> by_size_;
};

Blocks& blocks() {
  static Blocks shared;
  return shared;
}

// Room for the numbers of the halves, of the halves of these, and so on.
class Stack {
 public:
  explicit Stack(int64_t size) : room_(16 * (size / kLimb + 64)) {}
  uint64_t* take(int64_t limbs) {
    used_ += limbs;
    TORCH_CHECK(used_ <= static_cast<int64_t>(room_.size()), "dgc: a number of a subset is too long");
    return room_.data() + used_ - limbs;
  }
  void give(int64_t limbs) { used_ -= limbs; }

 private:
  std::vector<uint64_t> room_;
  int64_t used_ = 0;
};

// The number of a subset, where block.of(count) has one limb: so have the numbers of its halves.
uint64_t small_number_of(Block& block, const int64_t* at, int64_t count, int64_t base) {
  if (count == 0 || count == block.size) return 0;
  if (count == 1) return static_cast<uint64_t>(at[0] - base);
  const Subsets& subsets = block.of(count);
  const int64_t middle = base + block.left->size;
  int64_t held = 0;
  while (held < count && at[held] < middle) ++held;
  const uint64_t weight = block.right->of(count - held).total[0];
  return subsets.before[held - subsets.least] + small_number_of(*block.left, at, held, base) * weight +
         small_number_of(*block.right, at + held, count - held, middle);
}

// The number of the subset of a block that begins at element `base`, in block.of(count).limbs limbs.
void number_of(Block& block, const int64_t* at, int64_t count, int64_t base, uint64_t* out, Stack& stack) {
  const Subsets& subsets = block.of(count);
  if (subsets.limbs == 1) {
    out[0] = small_number_of(block, at, count, base);
    return;
  }
  const int64_t middle = base + block.left->size;
  const int64_t held = std::lower_bound(at, at + count, middle) - at;
  std::copy_n(subsets.before.begin() + (held - subsets.least) * subsets.limbs, subsets.limbs, out);
  const Subsets& weight = block.right->of(count - held);
  if (held > 0 && held < block.left->size) {
    const int64_t limbs = block.left->of(held).limbs;
    uint64_t* number = stack.take(limbs);
    number_of(*block.left, at, held, base, number, stack);
    const int64_t used = limbs_of(number, limbs);
    for (int64_t i = 0; i < weight.limbs; ++i) add_product(out + i, subsets.limbs - i, number, std::min(used, subsets.limbs - i), weight.total[i]);
    stack.give(limbs);
  }
  uint64_t* number = stack.take(weight.limbs);
  number_of(*block.right, at + held, count - held, middle, number, stack);
  add_product(out, subsets.limbs, number, weight.limbs, 1);
  stack.give(weight.limbs);
}

// The elements of a subset from its number, which is valid, where block.of(count) has one limb.
void small_subset_of(Block& block, uint64_t number, int64_t count, int64_t base, int64_t* out) {
  if (count == 0 || count == block.size) {
    for (int64_t i = 0; i < count; ++i) out[i] = base + i;
    return;
  }
  if (count == 1) {
    out[0] = base + static_cast<int64_t>(number);
    return;
  }
  const Subsets& subsets = block.of(count);
  const uint64_t* before = subsets.before.data();
  const int64_t least = subsets.least;
  int64_t held = std::clamp(count * block.left->size / block.size, least, subsets.most);
  while (number < before[held - least]) ++held;  // that of `most` is zero
  while (held > least && number >= before[held - least - 1]) --held;
  number -= before[held - least];
  const uint64_t weight = block.right->of(count - held).total[0];
  const uint64_t quotient = number / weight;
  small_subset_of(*block.left, quotient, held, base, out);
  small_subset_of(*block.right, number - quotient * weight, count - held, base + block.left->size, out + held);
}

// The elements of a subset from its number, which is valid and is overwritten.
void subset_of(Block& block, uint64_t* number, int64_t count, int64_t base, int64_t* out, Stack& stack) {
  const Subsets& subsets = block.of(count);
  if (subsets.limbs == 1) return small_subset_of(block, number[0], count, base, out);
  const int64_t n = subsets.limbs;
  const uint64_t* before = subsets.before.data();
  const auto row = [&](int64_t held) { return before + (held - subsets.least) * n; };
  int64_t held = std::clamp(count * block.left->size / block.size, subsets.least, subsets.most);
  while (is_less(number, row(held), n)) ++held;  // row(most) is zero
  while (held > subsets.least && !is_less(number, row(held - 1), n)) --held;
  subtract(number, n, row(held), n);
  const Subsets& weight = block.right->of(count - held);
  const int64_t room = 3 * n + 2 + weight.limbs;
  uint64_t* quotient = stack.take(room);
  divide(number, n, weight.total.data(), weight.limbs, quotient, quotient + n);
  subset_of(*block.left, quotient, held, base, out, stack);
  stack.give(room);
  subset_of(*block.right, number, count - held, base + block.left->size, out + held, stack);
}

inline void or_bits(uint8_t* stream, int64_t bit, uint64_t limb) {
  uint64_t words[2];
  std::memcpy(words, stream + bit / 8, sizeof words);
  const int shift = static_cast<int>(bit % 8);
  words[0] |= limb << shift;
  if (shift) words[1] |= limb >> (kLimb - shift);
  std::memcpy(stream + bit / 8, words, sizeof words);
}

inline uint64_t load_bits(const uint8_t* stream, int64_t bit) {
  uint64_t words[2];
  std::memcpy(words, stream + bit / 8, sizeof words);
  const int shift = static_cast<int>(bit % 8);
  return shift ? words[0] >> shift | words[1] << (kLimb - shift) : words[0];
}

constexpr int64_t kSlack = 2 * sizeof(uint64_t);  // bytes behind a stream, so that words may reach over its end

// The bits of a chunk that holds `count` indices: those of the largest binomial from half on.
int64_t bits_of(Block& block, int64_t count) {
  const std::vector<uint64_t>& total = block.of(std::min(count, block.size / 2)).total;
  if (total.size() == 1) return kLimb - std::countl_zero(total[0] - 1);
  // C(s, q) - 1 has the bit length of C(s, q), unless that is a power of two.
  const bool is_power = std::has_single_bit(total.back()) && std::all_of(total.begin(), total.end() - 1, [](uint64_t limb) { return limb == 0; });
  return kLimb * static_cast<int64_t>(total.size()) - std::countl_zero(total.back()) - is_power;
}

void check(int64_t numel, int64_t count, int64_t chunk) {
  TORCH_CHECK(0 < chunk && chunk <= kMostChunk && 0 <= count && count <= numel, "dgc: ", count, " of ", numel,
              " indices cannot be written in chunks of ", chunk);
}

// Calls each(first index, number of indices, first element, block) for the chunks that hold indices.
template <typename Each>
void for_chunks(int64_t numel, int64_t count, int64_t chunk, const Each& each) {
  for (int64_t first = 0; first < count;) {
    const auto number = static_cast<int64_t>(static_cast<Wide>(first) * numel / count / chunk);
    // The next chunk's first index is the first m with m·n / k >= its first element.
    const Wide end = (static_cast<Wide>(number) + 1) * chunk * count;
    const auto next = static_cast<int64_t>(std::min<Wide>(end / numel + (end % numel != 0), count));
    each(first, next - first, number * chunk, *blocks().of(std::min(chunk, numel - number * chunk)));
    first = next;
  }
}

// Whether indices that ascend below `numel` are spread over the chunks as the code needs.
bool is_even(const Tensor& indices, int64_t numel, int64_t chunk) {
  check_flat(indices, at::kLong, "indices");
  check(numel, indices.numel(), chunk);
  const int64_t* at = indices.const_data_ptr<int64_t>();
  const std::lock_guard<std::mutex> held(blocks().lock);
  bool found = true;
  for_chunks(numel, indices.numel(), chunk, [&](int64_t first, int64_t count, int64_t base, Block& block) {
    found = found && base <= at[first] && at[first + count - 1] < base + block.size;
  });
  return found;
}

// `bytes` is the length of the section, which the caller computes.
Tensor encode(const Tensor& indices, int64_t numel, int64_t chunk, int64_t bytes) {
  check_flat(indices, at::kLong, "indices");
  check(numel, indices.numel(), chunk);
  TORCH_CHECK(0 <= bytes && bytes <= indices.numel() * 8, "dgc: ", bytes, " bytes for ", indices.numel(), " indices");
  const int64_t* at = indices.const_data_ptr<int64_t>();
  const std::lock_guard<std::mutex> held(blocks().lock);
  Stack stack(chunk);
  Tensor section = at::zeros({bytes + kSlack}, at::kByte);
  uint8_t* out = section.data_ptr<uint8_t>();
  int64_t bit = 0;
  for_chunks(numel, indices.numel(), chunk, [&](int64_t first, int64_t count, int64_t base, Block& block) {
    for (int64_t i = first; i < first + count; ++i) {
      TORCH_CHECK(base <= at[i] && at[i] < base + block.size && (i == first || at[i - 1] < at[i]), "dgc: index ", at[i],
                  " is not one of ", count, " that ascend in the chunk from ", base, " on");
    }
    const int64_t bits = bits_of(block, count), limbs = block.of(count).limbs;
    TORCH_CHECK(bit + bits <= bytes * 8, "dgc: the indices do not fit ", bytes, " bytes");
    uint64_t* number = stack.take(limbs);
    std::fill_n(number, limbs, 0);
    number_of(block, at + first, count, base, number, stack);
    for (int64_t i = 0; i < limbs && i * kLimb < bits; ++i) or_bits(out, bit + i * kLimb, number[i]);
    stack.give(limbs);
    bit += bits;
  });
  return section.narrow(0, 0, bytes);
}

// The indices, and the first chunk whose number is that of no subset, counted among those that hold
// indices; -1 for none.
std::tuple<Tensor, int64_t> decode(const Tensor& section, int64_t numel, int64_t count, int64_t chunk) {
  check_flat(section, at::kByte, "a section");
  check(numel, count, chunk);
  std::vector<uint8_t> stream(section.numel() + kSlack, 0);
  if (section.numel()) std::memcpy(stream.data(), section.const_data_ptr<uint8_t>(), section.numel());
  const std::lock_guard<std::mutex> locked(blocks().lock);
  Stack stack(chunk);
  Tensor indices = at::empty({count}, at::kLong);
  int64_t* out = indices.data_ptr<int64_t>();
  int64_t bit = 0, number_of_chunk = 0, bad = -1;
  for_chunks(numel, count, chunk, [&](int64_t first, int64_t held, int64_t base, Block& block) {
    if (bad >= 0) return;
    const Subsets& subsets = block.of(held);
    const int64_t bits = bits_of(block, held);
    TORCH_CHECK(bit + bits <= section.numel() * 8, "dgc: ", count, " indices do not fit ", section.numel(), " bytes");
    // Where more than half are held, a damaged number may be longer than those of the subsets.
    const int64_t limbs = std::max<int64_t>(subsets.limbs, (bits + kLimb - 1) / kLimb);
    uint64_t* number = stack.take(2 * limbs);
    uint64_t* total = number + limbs;
    std::fill_n(number, 2 * limbs, 0);
    std::copy_n(subsets.total.begin(), subsets.limbs, total);
    for (int64_t i = 0; i * kLimb < bits; ++i) {
      const int64_t rest = bits - i * kLimb;
      const uint64_t limb = load_bits(stream.data(), bit + i * kLimb);
      number[i] = rest < kLimb ? limb & ((uint64_t{1} << rest) - 1) : limb;
    }
    if (is_less(number, total, limbs)) {
      subset_of(block, number, held, base, out + first, stack);
    } else {
      bad = number_of_chunk;
    }
    stack.give(2 * limbs);
    bit += bits;
    ++number_of_chunk;
  });
  return {indices, bad};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dgc, library) {
  library.def("is_even(Tensor indices, int numel, int chunk) -> bool");
  library.def("even_encode(Tensor indices, int numel, int chunk, int bytes) -> Tensor");
  library.def("even_decode(Tensor section, int numel, int count, int chunk) -> (Tensor, int)");
}

TORCH_LIBRARY_IMPL(dgc, CPU, library) {
  library.impl("is_even", is_even);
  library.impl("even_encode", encode);
  library.impl("even_decode", decode);
}

}  // namespace dgc
