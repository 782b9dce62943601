// The operator torch.ops.dgc.cosine: the transform of dgc/transforms/dct.py, whose exact_product is the same in
// plain PyTorch.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "checks.h"
#include "cosine_loop.h"
#include "processor.h"

namespace dgc {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 32768;  // elements per thread
constexpr int64_t kMost = 128;     // the longest side: MOST in dgc/transforms/dct.py
constexpr int64_t kWidest = int64_t{1} << 40;  // the most tiles in a row
constexpr int64_t kLeast = 16;     // a side below it is not halved: sums and differences would cost more

CosineLoop cosine_loop() {
#ifdef DGC_X86
  if (has_avx512()) return avx512_cosine;
  if (has_avx2()) return avx2_cosine;
#endif
  return baseline_cosine;
}

std::vector<double> transposed(const std::vector<double>& matrix, int64_t size) {
  std::vector<double> turned(matrix.size());
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t c = 0; c < size; ++c) turned[c * size + r] = matrix[r * size + c];
  }
  return turned;
}

// Every step-th row of the cosines from `begin` on, and as many places.
std::vector<double> rows_of(const double* cosines, int64_t size, int64_t begin, int64_t step, int64_t count) {
  std::vector<double> rows;
  for (int64_t k = 0; k < count; ++k) {
    const double* row = cosines + (begin + k * step) * size;
    rows.insert(rows.end(), row, row + count);
  }
  return rows;
}

Side side_of(const Tensor& cosines) {
  const int64_t size = cosines.size(0);
  const double* data = cosines.const_data_ptr<double>();
  Side side{size, {}, size, {}, {}, std::vector<int64_t>(size)};
  int64_t step = 1;
  for (; side.rest % 2 == 0 && side.rest >= kLeast; side.rest /= 2, step *= 2) {
    const int64_t half = side.rest / 2;
    Halves level{side.rest, rows_of(data, size, step, 2 * step, half), {}};
    level.odd_t = transposed(level.odd, half);
    for (int64_t k = 0; k < half; ++k) side.frequency[half + k] = (2 * k + 1) * step;
    side.halves.push_back(std::move(level));
  }
  side.even = rows_of(data, size, 0, step, side.rest);
  side.even_t = transposed(side.even, side.rest);
  for (int64_t k = 0; k < side.rest; ++k) side.frequency[k] = k * step;
  return side;
}

void check_cosines(const Tensor& cosines, int64_t size) {
  TORCH_CHECK(cosines.device().is_cpu() && cosines.is_contiguous() && cosines.scalar_type() == at::kDouble &&
                  cosines.dim() == 2 && cosines.size(0) == size && cosines.size(1) == size && is_aligned(cosines),
              "dgc: cosines must be a contiguous float64 matrix of ", size, " rows and columns, got ",
              cosines.scalar_type(), " ", cosines.sizes());
}

// Overwrite `target` with the transform of the tiles of `source`: from a matrix to tiles that lie one after another,
// or back.
void cosine(const Tensor& source, const Tensor& target, int64_t across, const Tensor& left, const Tensor& right,
            bool inverse) {
  check_flat(source, at::kFloat, "what is transformed");
  check_flat(target, at::kFloat, "a transform");
  TORCH_CHECK(left.dim() == 2 && right.dim() == 2, "dgc: cosines must be matrices");
  const int64_t height = left.size(0), width = right.size(0), numel = source.numel();
  TORCH_CHECK(std::min(height, width) >= 1 && std::max(height, width) <= kMost, "dgc: tiles of ", height, " x ", width,
              " cannot be transformed, sides of 1 to ", kMost, " can");
  check_cosines(left, height);
  check_cosines(right, width);
  TORCH_CHECK(target.numel() == numel, "dgc: ", numel, " elements and a transform of ", target.numel());
  TORCH_CHECK(across >= 1 && across <= kWidest && numel % (height * width * across) == 0, "dgc: ", numel,
              " elements are no rows of ", across, " tiles of ", height, " x ", width);
  const float *from = source.const_data_ptr<float>(), *to = target.const_data_ptr<float>();
  TORCH_CHECK(from + numel <= to || to + numel <= from, "dgc: a transform overlaps what is transformed");
  const Tiles tiles{from, target.data_ptr<float>(), height, width, across, inverse};
  const Side down = side_of(left), along = side_of(right);
  const int64_t count = numel / (height * width), grain = std::max<int64_t>(kGrain / (height * width), 1);
  at::parallel_for(0, count, grain, [&](int64_t first, int64_t last) {
    cosine_loop()(tiles, down, along, first, last);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dgc, library) {
  library.def(
      "cosine(Tensor source, Tensor(a!) target, int across, Tensor left, Tensor right, bool inverse) -> ()");
}

TORCH_LIBRARY_IMPL(dgc, CPU, library) { library.impl("cosine", cosine); }

}  // namespace dgc
