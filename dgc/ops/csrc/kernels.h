// The loops of dgc.ops, on raw pointers. kernels.cpp is compiled once per instruction set, each time
// into a namespace of its own; bindings.cpp picks one when the library is loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "rounding.h"

namespace dgc {

// How a memory adds a gradient g. With a momentum buffer u and an accumulated buffer v:
//   plain     v ← v + g                        (error feedback; no u)
//   momentum  u ← m·u + g,    v ← v + u        (momentum correction)
//   nesterov  u ← m·(u + g),  v ← v + u + g
enum class Rule : int64_t { kPlain = 0, kMomentum = 1, kNesterov = 2 };

// The type of a gradient.
enum class Type : int64_t { kFloat32, kBFloat16, kFloat16 };

// Part of a flat tensor of n elements, from position begin on.
template <typename T>
struct Piece {
  T* data;
  int64_t begin;
};

// In order of position, ended by a sentinel without data, whose begin is n.
template <typename T>
using Pieces = std::vector<Piece<T>>;

// The buffers of a memory, all float32 or all bfloat16, and the gradient to be added in float32.
struct Memory {
  Rule rule;
  float momentum;
  Type type;
  Pieces<const void> gradient;
  bool is_narrow;  // bfloat16
  Keys keys;       // of the random numbers that round the results to it
  void* u;         // null where the rule has none
  void* v;
  void* new_u;   // where the updated buffers are written: u and v themselves, or storage that does not
  void* new_v;   // overlap them
  bool streams;  // past the caches, which the new buffers would not fit

  bool in_place() const { return new_v == v; }
};

// Elements found at or above a threshold, in ascending order of their position.
struct Found {
  int64_t count = 0;  // of all; at most the first `limit` are stored below
  bool is_finite = true;
  std::vector<int64_t> indices;
  std::vector<float> values;
};

// The step of DGCSGD for parameters w, with mean gradient g and the momentum b of the weight decay:
//   b ← m·b + λ·w,  w ← w − lr·b − lr·g        nesterov: w ← w − lr·(λ·w + m·b) − lr·g
struct DecayedStep {
  float* w;
  const float* g;
  float* b;
  float rate, momentum, decay;
  bool nesterov;
};

// The loops, compiled for one instruction set.
struct Kernels {
  // Add the gradient at [begin, end) and collect the elements that are then at or above the threshold.
  // Out of place, the pass ends at a block that is not finite.
  void (*accumulate)(const Memory&, int64_t begin, int64_t end, float threshold, int64_t limit, Found*);
  // Collect from [begin, end) of values.
  void (*collect)(const float* values, int64_t begin, int64_t end, float threshold, int64_t limit, Found*);
  // The same of the bits of bfloat16 values.
  void (*collect_narrow)(const uint16_t* values, int64_t begin, int64_t end, float threshold, int64_t limit, Found*);
  // |v| as it will be once the gradient is added, at positions[i] for i in [begin, end).
  void (*sample)(const Memory&, const int64_t* positions, int64_t begin, int64_t end, float* out);
  // Whether [begin, end) of data holds neither an infinity nor a NaN.
  bool (*finite)(Type, const void* data, int64_t begin, int64_t end);
  // Add scale · values[i] at indices[i] for i in [0, count); fastest where the indices ascend.
  void (*add)(const Pieces<float>&, const int64_t* indices, const float* values, int64_t count, float scale);
  // Update the parameters at [begin, end).
  void (*step)(const DecayedStep&, int64_t begin, int64_t end);
};

const Kernels& baseline_kernels();
#ifdef DGC_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

}  // namespace dgc
