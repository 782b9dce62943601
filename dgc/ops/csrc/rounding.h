// Stochastic rounding of float32 to bfloat16, as dgc/ops/rounding.py describes it.
#pragma once

#include <cstdint>
#include <cstring>

#include "uniform.h"

namespace dgc {

// Two keys of random numbers, and a draw of 32 bits from them by the position of an element below 2^32:
// the upper half is for v, the lower one for u.
struct Keys {
  uint32_t first, second;
};

namespace {  // each file is compiled for its own instruction set

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen_bfloat(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

// The keys for positions with the same upper half as this one.
inline Keys keys_at(Keys keys, int64_t position) {
  return {keys.first, keys.second ^ mix(static_cast<uint32_t>(position >> 32))};
}

inline uint32_t draw_at(Keys keys, uint32_t position) { return mix(position ^ keys.first) ^ keys.second; }

// The bits of a float32 of which the upper half is the rounded number. What is not finite stays so.
inline uint32_t rounded(uint32_t bits, uint32_t draw) {
  return bits + (static_cast<int32_t>(bits & 0x7fffffffu) < 0x7f800000 ? draw : 0u);
}

}  // namespace
}  // namespace dgc
