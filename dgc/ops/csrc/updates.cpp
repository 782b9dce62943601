// One pass over the parameters and the optimizer's buffers. A sparse gradient, mostly zeros, exists for
// one block at a time, in the first-level cache.
#include "updates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"

namespace dgc {
namespace DGC_ISA {
namespace {

constexpr int64_t kBlock = 512;  // elements

void scaled(const Target& target, float* __restrict w, const float* __restrict g, int64_t count) {
  const float keep = target.settings[0], rate = target.settings[1];
  for (int64_t i = 0; i < count; ++i) w[i] = std::fma(g[i], rate, w[i] * keep);
}

void decayed(const Target& target, float* __restrict w, float* __restrict b, const float* __restrict g, int64_t count) {
  const float rate = target.settings[0], m = target.settings[1], decay = target.settings[2];
  for (int64_t i = 0; i < count; ++i) {
    b[i] = b[i] * m + w[i] * decay;
    w[i] = w[i] - rate * b[i] - rate * g[i];
  }
}

void decayed_nesterov(const Target& target, float* __restrict w, float* __restrict b, const float* __restrict g,
                      int64_t count) {
  const float rate = target.settings[0], m = target.settings[1], decay = target.settings[2];
  for (int64_t i = 0; i < count; ++i) {
    const float of_w = w[i] * decay;
    b[i] = b[i] * m + of_w;
    w[i] = w[i] - rate * (of_w + m * b[i]) - rate * g[i];
  }
}

// Without weight decay torch does not add 0·w, which would differ for an infinite w and for g = −0.
template <bool kDecays, bool kNesterov>
void momentum(const Target& target, float* __restrict w, float* __restrict b, const float* __restrict g,
              int64_t count) {
  const float rate = target.settings[0], m = target.settings[1], d = target.settings[2], decay = target.settings[3];
  for (int64_t i = 0; i < count; ++i) {
    const float h = kDecays ? std::fma(w[i], decay, g[i]) : g[i];
    b[i] = std::fma(h, d, b[i] * m);
    w[i] = std::fma(kNesterov ? std::fma(b[i], m, h) : b[i], rate, w[i]);
  }
}

void decoupled(const Target& target, float* __restrict w, const float* __restrict g, int64_t count) {
  const float rate = target.settings[0], decay = target.settings[1];
  for (int64_t i = 0; i < count; ++i) w[i] = std::fma(std::fma(w[i], decay, g[i]), rate, w[i]);
}

// Update `count` elements of a parameter, from `offset` on, with their gradient.
void update(const Target& target, int64_t offset, int64_t count, const float* g) {
  if (target.step == Step::kNone) return;
  float* w = target.w + offset;
  float* b = target.b == nullptr ? nullptr : target.b + offset;
  switch (target.step) {
    case Step::kNone: break;
    case Step::kScaled: scaled(target, w, g, count); break;
    case Step::kDecayed: decayed(target, w, b, g, count); break;
    case Step::kDecayedNesterov: decayed_nesterov(target, w, b, g, count); break;
    case Step::kMomentum:
      (target.settings[3] != 0 ? momentum<true, false> : momentum<false, false>)(target, w, b, g, count);
      break;
    case Step::kNesterov:
      (target.settings[3] != 0 ? momentum<true, true> : momentum<false, true>)(target, w, b, g, count);
      break;
    case Step::kDecoupled: decoupled(target, w, g, count); break;
  }
}

// Whether a step changes an element whose gradient is 0.
bool changes_all(const Target& target) {
  return target.step != Step::kNone && !(target.step == Step::kScaled && target.settings[0] == 1);
}

}  // namespace
}  // namespace DGC_ISA

void DGC_NAME(DGC_ISA, _apply)(const std::vector<Target>& targets, const Mean& mean, int64_t begin, int64_t end) {
  using namespace DGC_ISA;
  float g[kBlock] = {};  // zeros but for the block at hand
  std::vector<int64_t> next;
  for (const Contribution& each : mean.contributions) {
    next.push_back(std::lower_bound(each.indices, each.indices + each.count, begin) - each.indices);
  }
  const Target* target = targets.data();
  int64_t count = 0;
  for (int64_t first = begin; first < end; first += count) {
    while (target[1].begin <= first) ++target;
    count = std::min({kBlock, end - first, target[1].begin - first});
    bool has_any = false;
    for (size_t c = 0; c < next.size(); ++c) {
      const Contribution& each = mean.contributions[c];
      for (int64_t& i = next[c]; i < each.count && each.indices[i] < first + count; ++i) {
        float& element = g[each.indices[i] - first];
        element = element + mean.scale * each.values[i];
        has_any = true;
      }
    }
    if (mean.dense != nullptr) {
      update(*target, first - target->begin, count, mean.dense + first);
    } else if (has_any || changes_all(*target)) {
      update(*target, first - target->begin, count, g);
    }
    if (has_any) std::memset(g, 0, sizeof g);
  }
}

}  // namespace dgc
