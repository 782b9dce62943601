// Compiled without fused multiply-add contraction, so that every result equals that of the separate
// PyTorch operations bit for bit.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa.h"
#include "narrow.h"

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace dgc {
namespace DGC_ISA {
namespace {

// Elements that are updated before their largest magnitude is compared with the threshold: three
// buffers of them fit the first-level cache, and at a density of 0.001 three blocks in five hold no
// element to collect, so they need no second look.
constexpr int64_t kBlock = 512;

// Magnitudes order as their bit patterns do. A maximum of integers is vectorized, one of floats is
// not, because of NaN; here a NaN is above all other values.
inline int32_t magnitude(float value) { return static_cast<int32_t>(bits_of(value) & 0x7fffffffu); }
inline int32_t magnitude(uint16_t bfloat) { return (bfloat & 0x7fff) << 16; }

inline float widen_half(uint16_t half) {
#ifdef __F16C__
  return _cvtsh_ss(half);
#else
  const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  // Shifted into place its exponent is 112 too small; multiplying also normalises subnormals.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
#endif
}


// A number of a memory: float32, or the bits of a bfloat16.
inline float number(float value) { return value; }
inline float number(uint16_t value) { return widen_bfloat(value); }

// The piece that holds a position. Of several that begin there it is the last: the others are empty.
template <typename T>
inline const Piece<T>* piece_of(const Pieces<T>& pieces, int64_t position) {
  const auto after = [](int64_t at, const Piece<T>& piece) { return at < piece.begin; };
  return &*std::upper_bound(pieces.begin(), pieces.end(), position, after) - 1;
}

// The same, checking `piece` first: ascending positions mostly stay within one piece.
template <typename T>
inline const Piece<T>* piece_from(const Piece<T>* piece, const Pieces<T>& pieces, int64_t position) {
  return piece->begin <= position && position < piece[1].begin ? piece : piece_of(pieces, position);
}

// count elements of a piece of the gradient, as float32: in place, or widened into buffer.
inline const float* gradient_block(Type type, const void* piece, int64_t offset, int64_t count, float* buffer) {
  if (type == Type::kFloat32) return static_cast<const float*>(piece) + offset;
  const uint16_t* narrow = static_cast<const uint16_t*>(piece) + offset;
  if (type == Type::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = widen_bfloat(narrow[i]);
  } else {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
      const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(narrow + i));
      _mm256_storeu_ps(buffer + i, _mm256_cvtph_ps(eight));
    }
#endif
    for (; i < count; ++i) buffer[i] = widen_half(narrow[i]);
  }
  return buffer;
}

// The three rules over one block; each returns the largest magnitude that v then has. The new buffers
// are the old ones, or do not overlap them.
int32_t plain(const float* g, const float* v, float* new_v, int64_t count) {
  int32_t largest = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float sum = v[i] + g[i];
    new_v[i] = sum;
    largest = std::max(largest, magnitude(sum));
  }
  return largest;
}

int32_t momentum(const float* g, const float* u, const float* v, float* new_u, float* new_v, int64_t count, float m) {
  int32_t largest = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float velocity = u[i] * m + g[i];
    const float sum = v[i] + velocity;
    new_u[i] = velocity;
    new_v[i] = sum;
    largest = std::max(largest, magnitude(sum));
  }
  return largest;
}

int32_t nesterov(const float* g, const float* u, const float* v, float* new_u, float* new_v, int64_t count, float m) {
  int32_t largest = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float velocity = (u[i] + g[i]) * m;
    const float sum = v[i] + velocity + g[i];
    new_u[i] = velocity;
    new_v[i] = sum;
    largest = std::max(largest, magnitude(sum));
  }
  return largest;
}

// One block by the rule of a memory, whose buffers have elements of type T.
int32_t update_block(const Memory& memory, const float* g, const float* u, const float* v, float* new_u, float* new_v,
                     int64_t count, int64_t) {
  switch (memory.rule) {
    case Rule::kPlain: return plain(g, v, new_v, count);
    case Rule::kMomentum: return momentum(g, u, v, new_u, new_v, count, memory.momentum);
    default: return nesterov(g, u, v, new_u, new_v, count, memory.momentum);
  }
}

int32_t update_block(const Memory& memory, const float* g, const uint16_t* u, const uint16_t* v, uint16_t* new_u,
                     uint16_t* new_v, int64_t count, int64_t position) {
  const Keys keys = keys_at(memory.keys, position);
  const auto run = [&](auto* loop) {
    return loop(g, u, v, new_u, new_v, static_cast<int32_t>(count), memory.momentum, keys,
                static_cast<uint32_t>(position));
  };
  switch (memory.rule) {
    case Rule::kPlain: return run(round_block<Rule::kPlain>);
    case Rule::kMomentum: return run(round_block<Rule::kMomentum>);
    default: return run(round_block<Rule::kNesterov>);
  }
}

// Copy a block past the caches, where it begins at a multiple of a vector.
template <typename T>
void stream(const T* from, T* to, int64_t count) {
  int64_t i = 0;
#ifdef __AVX__
  constexpr int64_t kVector = 32 / sizeof(T);
  if (reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    for (; i + kVector <= count; i += kVector) {
      const __m256i vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), vector);
    }
  }
#endif
  std::copy(from + i, from + count, to + i);
}

// Make the writes of `stream` visible to other threads before this one says that it has ended.
void end_streaming() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

template <typename T>
int32_t largest_of(const T* __restrict values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(values[i]));
  return largest;
}

// With a threshold of 0, every element that is not 0 is found.
inline int32_t lowest_wanted(float threshold) { return std::max(magnitude(threshold), 1); }

template <typename T>
void collect_block(const T* values, int64_t begin, int64_t count, int32_t lowest, int64_t limit, Found* found) {
  constexpr int64_t kGroup = 16;
  for (int64_t first = 0; first < count; first += kGroup) {
    const int64_t end = std::min(first + kGroup, count);
    if (largest_of(values + first, end - first) < lowest) continue;
    for (int64_t i = first; i < end; ++i) {
      if (magnitude(values[i]) < lowest) continue;
      if (found->count++ >= limit) continue;
      found->indices.push_back(begin + i);
      found->values.push_back(number(values[i]));
    }
  }
}

constexpr int32_t kInfinity = 0x7f800000;  // the magnitude of an infinity; those of NaN are larger

// Elements from a position to the next multiple of 2^32, which enters the keys of random numbers.
inline int64_t until_next_keys(int64_t position) { return (int64_t{1} << 32) - (position & 0xffffffff); }

template <typename T>
void accumulate_of(const Memory& memory, int64_t begin, int64_t end, float threshold, int64_t limit, Found* found) {
  const int32_t lowest = lowest_wanted(threshold);
  float buffer[kBlock];
  T block_u[kBlock], block_v[kBlock];
  const T *old_u = static_cast<const T*>(memory.u), *old_v = static_cast<const T*>(memory.v);
  T *into_u = static_cast<T*>(memory.new_u), *into_v = static_cast<T*>(memory.new_v);
  int64_t count = 0;
  for (int64_t first = begin; first < end; first += count) {
    const Piece<const void>* piece = piece_of(memory.gradient, first);
    count = std::min({kBlock, end - first, piece[1].begin - first, until_next_keys(first)});
    const float* g = gradient_block(memory.type, piece->data, first - piece->begin, count, buffer);
    const T* v = old_v + first;
    const T* u = old_u == nullptr ? nullptr : old_u + first;
    T* new_u = memory.streams || u == nullptr ? block_u : into_u + first;
    T* new_v = memory.streams ? block_v : into_v + first;
    const int32_t largest = update_block(memory, g, u, v, new_u, new_v, count, first);
    if (largest >= kInfinity) {
      found->is_finite = false;
      if (!memory.in_place()) break;
    }
    if (largest >= lowest) collect_block(new_v, first, count, lowest, limit, found);
    if (memory.streams) {
      stream(block_v, into_v + first, count);
      if (memory.rule != Rule::kPlain) stream(block_u, into_u + first, count);
    }
  }
  if (memory.streams) end_streaming();
}

void accumulate(const Memory& memory, int64_t begin, int64_t end, float threshold, int64_t limit, Found* found) {
  const auto loop = memory.is_narrow ? accumulate_of<uint16_t> : accumulate_of<float>;
  loop(memory, begin, end, threshold, limit, found);
}

template <typename T>
void collect(const T* values, int64_t begin, int64_t end, float threshold, int64_t limit, Found* found) {
  const int32_t lowest = lowest_wanted(threshold);
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    if (largest_of(values + first, count) >= lowest) {
      collect_block(values + first, first, count, lowest, limit, found);
    }
  }
}

inline float gradient_at(Type type, const void* piece, int64_t offset) {
  switch (type) {
    case Type::kFloat32: return static_cast<const float*>(piece)[offset];
    case Type::kBFloat16: return widen_bfloat(static_cast<const uint16_t*>(piece)[offset]);
    default: return widen_half(static_cast<const uint16_t*>(piece)[offset]);
  }
}

// Ask for the cache lines of a position, each of which would otherwise be waited for.
template <typename T>
inline void prefetch(const Memory& memory, const Piece<const void>* piece, int64_t position) {
  __builtin_prefetch(static_cast<const T*>(memory.v) + position);
  if (memory.rule != Rule::kPlain) __builtin_prefetch(static_cast<const T*>(memory.u) + position);
  if (position < piece->begin || position >= piece[1].begin) return;
  const int64_t bytes = memory.type == Type::kFloat32 ? 4 : 2;
  __builtin_prefetch(static_cast<const char*>(piece->data) + (position - piece->begin) * bytes);
}

template <typename T>
void sample_of(const Memory& memory, const int64_t* positions, int64_t begin, int64_t end, float* out) {
  constexpr int64_t kAhead = 64;  // positions: of 16 runs of neighbours
  const Piece<const void>* piece = memory.gradient.data();
  const T *old_u = static_cast<const T*>(memory.u), *old_v = static_cast<const T*>(memory.v);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kAhead < end) prefetch<T>(memory, piece, positions[i + kAhead]);
    const int64_t position = positions[i];
    piece = piece_from(piece, memory.gradient, position);
    const float g = gradient_at(memory.type, piece->data, position - piece->begin);
    float v = number(old_v[position]);
    switch (memory.rule) {
      case Rule::kPlain: v = v + g; break;
      case Rule::kMomentum: v = v + (number(old_u[position]) * memory.momentum + g); break;
      case Rule::kNesterov: v = v + (number(old_u[position]) + g) * memory.momentum + g; break;
    }
    if constexpr (std::is_same_v<T, uint16_t>) {
      const uint32_t draw = draw_at(keys_at(memory.keys, position), static_cast<uint32_t>(position));
      v = float_of(rounded(bits_of(v), draw >> 16) & 0xffff0000u);
    }
    out[i] = std::fabs(v);
  }
}

void sample(const Memory& memory, const int64_t* positions, int64_t begin, int64_t end, float* out) {
  const auto loop = memory.is_narrow ? sample_of<uint16_t> : sample_of<float>;
  loop(memory, positions, begin, end, out);
}

template <typename Word>
Word largest_magnitude(const Word* words, int64_t count) {
  constexpr Word kMagnitude = std::numeric_limits<Word>::max();
  Word largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max<Word>(largest, words[i] & kMagnitude);
  return largest;
}

// Whether the exponent of every number is below that of an infinity, which is `infinity`. Reads from
// several places in turn: a core fetches one sequence of addresses at half of the memory's speed.
template <typename Word>
bool all_below(Word infinity, const void* data, int64_t begin, int64_t end) {
  constexpr int64_t kStreams = 4, kRun = 1024;  // elements read from one place before the next
  const Word* words = static_cast<const Word*>(data) + begin;
  const int64_t part = (end - begin) / kStreams;
  for (int64_t first = 0; first < part; first += kRun) {
    Word largest = 0;
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const Word* run = words + stream * part + first;
      largest = std::max(largest, largest_magnitude(run, std::min(kRun, part - first)));
    }
    if (largest >= infinity) return false;
  }
  return largest_magnitude(words + kStreams * part, end - begin - kStreams * part) < infinity;
}

bool finite(Type type, const void* data, int64_t begin, int64_t end) {
  switch (type) {
    case Type::kFloat32: return all_below<int32_t>(0x7f800000, data, begin, end);
    case Type::kBFloat16: return all_below<int16_t>(0x7f80, data, begin, end);
    default: return all_below<int16_t>(0x7c00, data, begin, end);
  }
}

void add(const Pieces<float>& pieces, const int64_t* indices, const float* values, int64_t count, float scale) {
  const Piece<float>* piece = pieces.data();
  for (int64_t i = 0; i < count; ++i) {
    piece = piece_from(piece, pieces, indices[i]);
    float& element = piece->data[indices[i] - piece->begin];
    element = element + scale * values[i];
  }
}

void step(const DecayedStep& given, int64_t begin, int64_t end) {
  float* __restrict w = given.w;
  const float* __restrict g = given.g;
  float* __restrict b = given.b;
  const float rate = given.rate, m = given.momentum, decay = given.decay;
  if (given.nesterov) {
    for (int64_t i = begin; i < end; ++i) {
      const float decayed = w[i] * decay;
      b[i] = b[i] * m + decayed;
      w[i] = w[i] - rate * (decayed + m * b[i]) - rate * g[i];
    }
  } else {
    for (int64_t i = begin; i < end; ++i) {
      b[i] = b[i] * m + w[i] * decay;
      w[i] = w[i] - rate * b[i] - rate * g[i];
    }
  }
}

}  // namespace
}  // namespace DGC_ISA

const Kernels& DGC_NAME(DGC_ISA, _kernels)() {
  static const Kernels kernels = {DGC_ISA::accumulate, DGC_ISA::collect<float>, DGC_ISA::collect<uint16_t>,
                                  DGC_ISA::sample, DGC_ISA::finite, DGC_ISA::add, DGC_ISA::step};
  return kernels;
}

}  // namespace dgc
