// Each tile is transformed by one thread, along its rows and then along its columns, in a second-level cache.
#include "cosine_loop.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"

namespace dgc {
namespace DGC_ISA {
namespace {

constexpr int64_t kRows = 4, kColumns = 8;  // of a block of the product, which is summed in registers
constexpr int kValueBits = 22;              // VALUE_BITS in dgc/transforms/dct.py

// Four numbers, in one or two registers of the processor: of a block of sums the compiler would not keep all there.
typedef double Four __attribute__((vector_size(32)));
constexpr int64_t kFour = 4;

inline Four load(const double* from) {
  Four loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

// out[rows of the block][kFours · 4] = a[rows of the block][depth] · b[depth][kFours · 4]. Products and sums are exact,
// so whether the compiler rounds them together makes no difference.
template <int64_t kHeight, int64_t kFours>
void block(const double* a, int64_t a_stride, const double* b, int64_t b_stride, int64_t depth, double* out,
           int64_t out_stride) {
  Four sums[kHeight][kFours] = {};
  for (int64_t n = 0; n < depth; ++n) {
    Four right[kFours];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kFours; ++c) right[c] = load(b + n * b_stride + c * kFour);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kHeight; ++r) {
      const double factor = a[r * a_stride + n];
#pragma GCC unroll 4
      for (int64_t c = 0; c < kFours; ++c) sums[r][c] += right[c] * factor;
    }
  }
  for (int64_t r = 0; r < kHeight; ++r) std::memcpy(out + r * out_stride, sums[r], sizeof sums[r]);
}

// out[rows][columns] = a[rows][depth] · b[depth][columns]
void product(const double* a, int64_t a_stride, const double* b, int64_t b_stride, int64_t rows, int64_t depth,
             int64_t columns, double* out, int64_t out_stride) {
  int64_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) {
      block<kRows, kColumns / kFour>(a + r * a_stride, a_stride, b + c, b_stride, depth, out + r * out_stride + c,
                                     out_stride);
    }
    for (; r < rows; ++r) {
      block<1, kColumns / kFour>(a + r * a_stride, a_stride, b + c, b_stride, depth, out + r * out_stride + c,
                                 out_stride);
    }
  }
  for (; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t n = 0; n < depth; ++n) sum += a[r * a_stride + n] * b[n * b_stride + c];
      out[r * out_stride + c] = sum;
    }
  }
}

// What a thread needs beside its tiles.
struct Scratch {
  explicit Scratch(int64_t numel) : x(numel), y(numel), z(numel) {}
  std::vector<double> x, y, z;  // a tile each
};

// Coefficients of each row of x [rows][side], in the order of computation. x is overwritten.
void rows_forward(const Side& side, int64_t rows, double* x, double* difference, double* out) {
  const int64_t stride = side.size;
  for (const Halves& level : side.halves) {
    const int64_t half = level.side / 2;
    for (int64_t r = 0; r < rows; ++r) {
      double* row = x + r * stride;
      for (int64_t n = 0; n < half; ++n) difference[r * half + n] = row[n] - row[level.side - 1 - n];
      for (int64_t n = 0; n < half; ++n) row[n] += row[level.side - 1 - n];
    }
    product(difference, half, level.odd_t.data(), half, rows, half, half, out + half, stride);
  }
  product(x, stride, side.even_t.data(), side.rest, rows, side.rest, side.rest, out, stride);
}

// The rows of these coefficients.
void rows_inverse(const Side& side, int64_t rows, const double* coefficients, double* odd, double* out) {
  const int64_t stride = side.size;
  product(coefficients, stride, side.even.data(), side.rest, rows, side.rest, side.rest, out, stride);
  for (auto level = side.halves.rbegin(); level != side.halves.rend(); ++level) {
    const int64_t half = level->side / 2;
    product(coefficients + half, stride, level->odd.data(), half, rows, half, half, odd, half);
    for (int64_t r = 0; r < rows; ++r) {
      double* row = out + r * stride;
      for (int64_t n = 0; n < half; ++n) row[level->side - 1 - n] = row[n] - odd[r * half + n];
      for (int64_t n = 0; n < half; ++n) row[n] += odd[r * half + n];
    }
  }
}

// The same along the columns of x [side][columns].
void columns_forward(const Side& side, int64_t columns, double* x, double* difference, double* out) {
  for (const Halves& level : side.halves) {
    const int64_t half = level.side / 2;
    for (int64_t n = 0; n < half; ++n) {
      double* near = x + n * columns;
      const double* far = x + (level.side - 1 - n) * columns;
      for (int64_t c = 0; c < columns; ++c) difference[n * columns + c] = near[c] - far[c];
      for (int64_t c = 0; c < columns; ++c) near[c] += far[c];
    }
    product(level.odd.data(), half, difference, columns, half, half, columns, out + half * columns, columns);
  }
  product(side.even.data(), side.rest, x, columns, side.rest, side.rest, columns, out, columns);
}

void columns_inverse(const Side& side, int64_t columns, const double* coefficients, double* odd, double* out) {
  product(side.even_t.data(), side.rest, coefficients, columns, side.rest, side.rest, columns, out, columns);
  for (auto level = side.halves.rbegin(); level != side.halves.rend(); ++level) {
    const int64_t half = level->side / 2;
    product(level->odd_t.data(), half, coefficients + half * columns, columns, half, half, columns, odd, columns);
    for (int64_t n = 0; n < half; ++n) {
      double* near = out + n * columns;
      double* far = out + (level->side - 1 - n) * columns;
      for (int64_t c = 0; c < columns; ++c) far[c] = near[c] - odd[n * columns + c];
      for (int64_t c = 0; c < columns; ++c) near[c] += odd[n * columns + c];
    }
  }
}

// 1.5·2^23 units of a tile whose largest magnitude is given: a float32 sum with it is rounded to whole units.
float shift_of(float largest) {
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.5f, std::max(exponent, -100) + 23 - kValueBits);
}

// The largest magnitude of a tile. Magnitudes are compared as integers, since a maximum of floats does not vectorise.
float largest_of(const float* source, int64_t stride, int64_t height, int64_t width) {
  uint32_t largest = 0;
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      uint32_t bits;
      std::memcpy(&bits, source + r * stride + c, sizeof bits);
      largest = std::max(largest, bits & 0x7fffffffu);
    }
  }
  float magnitude;
  std::memcpy(&magnitude, &largest, sizeof magnitude);
  return magnitude;
}

// Read a tile of float32, as whole units; return its shift.
float read(const float* source, int64_t stride, int64_t height, int64_t width, const int64_t* rows,
           const int64_t* columns, double* x) {
  const float shift = shift_of(largest_of(source, stride, height, width));
  for (int64_t r = 0; r < height; ++r) {
    const float* row = source + (rows == nullptr ? r : rows[r]) * stride;
    double* out = x + r * width;
    if (columns == nullptr) {
      for (int64_t c = 0; c < width; ++c) out[c] = (row[c] + shift) - shift;
    } else {
      for (int64_t c = 0; c < width; ++c) out[c] = (row[columns[c]] + shift) - shift;
    }
  }
  return shift;
}

void write(const double* x, int64_t height, int64_t width, const int64_t* rows, const int64_t* columns, float* target,
           int64_t stride) {
  for (int64_t r = 0; r < height; ++r) {
    float* row = target + (rows == nullptr ? r : rows[r]) * stride;
    const double* from = x + r * width;
    if (columns == nullptr) {
      for (int64_t c = 0; c < width; ++c) row[c] = static_cast<float>(from[c]);
    } else {
      for (int64_t c = 0; c < width; ++c) row[columns[c]] = static_cast<float>(from[c]);
    }
  }
}

// To units twice as large, so that float64 holds the sums along the columns too.
void round(double* x, int64_t numel, float shift) {
  const double large = std::ldexp(static_cast<double>(shift), 52 - 23 + 1);
  for (int64_t i = 0; i < numel; ++i) x[i] = (x[i] + large) - large;
}

}  // namespace
}  // namespace DGC_ISA

void DGC_NAME(DGC_ISA, _cosine)(const Tiles& tiles, const Side& left, const Side& right, int64_t first, int64_t last) {
  using namespace DGC_ISA;
  const int64_t height = tiles.height, width = tiles.width, numel = height * width;
  Scratch scratch(numel);
  double *x = scratch.x.data(), *y = scratch.y.data(), *z = scratch.z.data();
  const int64_t *down = left.frequency.data(), *along = right.frequency.data();
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t row = tile / tiles.across, column = tile % tiles.across;
    const int64_t in_matrix = row * height * tiles.across * width + column * width, in_turn = tile * numel;
    const int64_t stride = tiles.across * width;
    if (tiles.inverse) {
      const float shift = read(tiles.source + in_turn, width, height, width, down, along, x);
      rows_inverse(right, height, x, z, y);
      if (height > 1) {
        round(y, numel, shift);
        columns_inverse(left, width, y, z, x);
      }
      write(height > 1 ? x : y, height, width, nullptr, nullptr, tiles.target + in_matrix, stride);
    } else {
      const float shift = read(tiles.source + in_matrix, stride, height, width, nullptr, nullptr, x);
      rows_forward(right, height, x, z, y);
      if (height > 1) {
        round(y, numel, shift);
        columns_forward(left, width, y, z, x);
      }
      write(height > 1 ? x : y, height, width, down, along, tiles.target + in_turn, width);
    }
  }
}

}  // namespace dgc
