// The hash of dgc/ops/uniform.py.
#pragma once

#include <cstdint>

namespace dgc {
namespace {  // each file is compiled for its own instruction set

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

}  // namespace
}  // namespace dgc
