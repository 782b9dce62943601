// The rules of a memory over a block of bfloat16: computed in float32, and rounded at random.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels.h"
#include "rounding.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace dgc {
namespace {  // each file is compiled for its own instruction set

// One element of a memory in bfloat16: what becomes of v in float32 bits, of which the upper half is kept.
// Its random number of 32 bits rounds v by the upper half, and u by the lower one.
template <Rule kRule>
inline uint32_t rounding(float g, const uint16_t* u, uint16_t v, uint16_t* new_u, float m, uint32_t draw) {
  float sum = widen_bfloat(v);
  if constexpr (kRule == Rule::kPlain) return rounded(bits_of(sum + g), draw >> 16);
  float velocity = widen_bfloat(*u);
  if constexpr (kRule == Rule::kMomentum) {
    velocity = velocity * m + g;
    sum = sum + velocity;
  } else {
    velocity = (velocity + g) * m;
    sum = sum + velocity + g;
  }
  *new_u = static_cast<uint16_t>(rounded(bits_of(velocity), draw & 0xffffu) >> 16);
  return rounded(bits_of(sum), draw >> 16);
}

#ifdef __AVX2__

// The two halves of sixteen elements, in the order in which _mm256_unpack takes them apart and
// _mm256_pack puts them together: 0 to 3 and 8 to 11; 4 to 7 and 12 to 15.
struct Sixteen {
  __m256 low, high;
};

inline Sixteen load_sixteen(const float* from) {
  const auto four = [&](int at, int other) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + at)), _mm_loadu_ps(from + other), 1);
  };
  return {four(0, 8), four(4, 12)};
}

inline Sixteen load_sixteen(const uint16_t* from) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), zero = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, all)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, all))};
}

inline void store_sixteen(uint16_t* to, __m256i low, __m256i high) {
  const __m256i all = _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), all);
}

// `draw_at` and `rounded` of eight elements.
inline __m256i draw_eight(Keys keys, __m256i positions) {
  __m256i x = _mm256_xor_si256(positions, _mm256_set1_epi32(keys.first));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x21f0aaad));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x735a2d97));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  return _mm256_xor_si256(x, _mm256_set1_epi32(keys.second));
}

inline __m256i rounded_eight(__m256 values, __m256i draw) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i magnitudes = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i is_finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitudes);
  return _mm256_add_epi32(bits, _mm256_and_si256(draw, is_finite));
}

// `rounding` of eight elements.
template <Rule kRule>
inline __m256i rounding_eight(__m256 g, __m256 u, __m256 v, __m256i* new_u, __m256 m, __m256i draw) {
  const __m256i of_v = _mm256_srli_epi32(draw, 16);
  if constexpr (kRule == Rule::kPlain) return rounded_eight(_mm256_add_ps(v, g), of_v);
  if constexpr (kRule == Rule::kMomentum) {
    u = _mm256_add_ps(_mm256_mul_ps(u, m), g);
    v = _mm256_add_ps(v, u);
  } else {
    u = _mm256_mul_ps(_mm256_add_ps(u, g), m);
    v = _mm256_add_ps(_mm256_add_ps(v, u), g);
  }
  *new_u = rounded_eight(u, _mm256_and_si256(draw, _mm256_set1_epi32(0xffff)));
  return rounded_eight(v, of_v);
}

// The first elements of a block, sixteen at a time; returns their number. Compilers widen and pack with
// twice as many instructions.
template <Rule kRule>
int32_t rounding_sixteens(const float* g, const uint16_t* u, const uint16_t* v, uint16_t* new_u, uint16_t* new_v,
                          int32_t count, float m, Keys keys, uint32_t position, int32_t* largest) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11), four = _mm256_set1_epi32(4);
  const __m256i magnitude = _mm256_set1_epi32(0x7fff0000);
  const __m256 momentum = _mm256_set1_ps(m);
  __m256i most = _mm256_setzero_si256();
  int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(position + i), low);
    const Sixteen added = load_sixteen(g + i), sum = load_sixteen(v + i);
    const Sixteen velocity = kRule == Rule::kPlain ? sum : load_sixteen(u + i);
    __m256i first_u = at, second_u = at;
    const __m256i first = rounding_eight<kRule>(added.low, velocity.low, sum.low, &first_u, momentum, draw_eight(keys, at));
    const __m256i second = rounding_eight<kRule>(added.high, velocity.high, sum.high, &second_u, momentum,
                                                 draw_eight(keys, _mm256_add_epi32(at, four)));
    if constexpr (kRule != Rule::kPlain) store_sixteen(new_u + i, first_u, second_u);
    store_sixteen(new_v + i, first, second);
    most = _mm256_max_epi32(most, _mm256_max_epi32(_mm256_and_si256(first, magnitude), _mm256_and_si256(second, magnitude)));
  }
  alignas(32) int32_t each[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(each), most);
  *largest = *std::max_element(each, each + 8);
  return i;
}

#endif

// The rules over one block of bfloat16, by its position in the bucket.
template <Rule kRule>
int32_t round_block(const float* g, const uint16_t* u, const uint16_t* v, uint16_t* new_u, uint16_t* new_v, int32_t count,
                    float m, Keys keys, uint32_t position) {
  int32_t largest = 0, i = 0;
#ifdef __AVX2__
  i = rounding_sixteens<kRule>(g, u, v, new_u, new_v, count, m, keys, position, &largest);
#endif
#pragma GCC ivdep
  for (; i < count; ++i) {
    const uint32_t draw = draw_at(keys, position + static_cast<uint32_t>(i));
    const uint16_t* old_u = kRule == Rule::kPlain ? nullptr : u + i;
    const uint32_t word = rounding<kRule>(g[i], old_u, v[i], new_u + i, m, draw);
    new_v[i] = static_cast<uint16_t>(word >> 16);
    largest = std::max(largest, static_cast<int32_t>(word & 0x7fff0000u));
  }
  return largest;
}

}  // namespace
}  // namespace dgc
