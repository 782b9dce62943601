// The steps of optimizers on a mean gradient, sparse or dense, on raw pointers. updates.cpp is compiled once per
// instruction set, as kernels.cpp is.
#pragma once

#include <cstdint>
#include <vector>

namespace dgc {

// How an optimizer updates a parameter w with its gradient g. fma(a, b, c) is a·b + c, rounded once, as
// torch rounds it; all other operations are rounded one by one. `s` are the settings of a Target.
//   kNone           nothing: the parameter took no part in the step
//   kScaled         w ← fma(g, s1, s0·w)                                  s: 1 − lr·λ, −lr
//   kDecayed        DGCSGD:  b ← m·b + λ·w,  w ← w − lr·b − lr·g          s: lr, m, λ
//   kDecayedNesterov         the same, w ← w − lr·(λ·w + m·b) − lr·g      s: lr, m, λ
//   kMomentum       SGD:  h ← fma(w, λ, g),  b ← fma(h, d, m·b),  w ← fma(b, −lr, w)    s: −lr, m, d, λ
//   kNesterov             the same, w ← fma(fma(b, m, h), −lr, w)                       s: −lr, m, d, λ
//   kDecoupled      SGD without momentum:  w ← fma(fma(w, λ, g), −lr, w)                s: −lr, λ
// Adam is not among them: torch's square root, of MKL, is not always the nearest number.
enum class Step : int64_t { kNone, kScaled, kDecayed, kDecayedNesterov, kMomentum, kNesterov, kDecoupled };
constexpr int64_t kSteps = 7;
constexpr int64_t kSettings = 4;  // the most that a step has

// A parameter of a bucket, from position begin on; ended by a sentinel as Pieces are.
struct Target {
  Step step;
  float* w;
  float* b;  // null where the step has none
  int64_t begin;
  float settings[kSettings];
};

// values[i] at ascending indices[i], for i in [0, count).
struct Contribution {
  const int64_t* indices;
  const float* values;
  int64_t count;
};

struct Mean {
  const float* dense;                       // the gradient [n]; null for scale · Σ contributions
  std::vector<Contribution> contributions;  // added in this order
  float scale;
};

// Update the targets at [begin, end) of the bucket with the mean gradient.
using ApplyLoop = void (*)(const std::vector<Target>&, const Mean&, int64_t begin, int64_t end);

void baseline_apply(const std::vector<Target>&, const Mean&, int64_t begin, int64_t end);
#ifdef DGC_X86
void avx2_apply(const std::vector<Target>&, const Mean&, int64_t begin, int64_t end);
void avx512_apply(const std::vector<Target>&, const Mean&, int64_t begin, int64_t end);
#endif

}  // namespace dgc
