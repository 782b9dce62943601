// The cosine transform of tiles, on raw pointers. cosine_loop.cpp is compiled once per instruction set, as
// kernels.cpp is.
#pragma once

#include <cstdint>
#include <vector>

namespace dgc {

// Products with the cosines C[k][n] of one side, and the same in fewer steps. Since
//   C[k][n] = ±C[k][side − 1 − n],  + for an even k and − for an odd one,
// the odd frequencies are half a side of differences x[n] − x[side − 1 − n], and the even ones of sums, whose
// cosines are again of this kind. All numbers are whole multiples of a unit, so nothing is rounded and the
// result is that of one sum over the side, in whatever order.
struct Halves {
  int64_t side;
  std::vector<double> odd;    // [side/2 frequencies][side/2 places]; empty where nothing is halved
  std::vector<double> odd_t;  // its transpose
};

struct Side {
  int64_t size;
  std::vector<Halves> halves;      // from the whole side on
  int64_t rest;                    // what remains of it
  std::vector<double> even;        // [rest][rest]: the frequencies that remain
  std::vector<double> even_t;      // its transpose
  std::vector<int64_t> frequency;  // of each coefficient in the order of computation: those that remain, then
                                   // the odd ones of the smallest halves, and so on
};

// A grid of tiles in two orders: as they lie in a matrix, and one after another.
struct Tiles {
  const float* source;
  float* target;
  int64_t height, width, across;  // sides of a tile, and tiles in a row of the grid
  bool inverse;                   // from tiles that lie one after another, to a matrix
};

// Transform tiles [first, last), counted along the rows of the grid.
using CosineLoop = void (*)(const Tiles&, const Side& left, const Side& right, int64_t first, int64_t last);

void baseline_cosine(const Tiles&, const Side& left, const Side& right, int64_t first, int64_t last);
#ifdef DGC_X86
void avx2_cosine(const Tiles&, const Side& left, const Side& right, int64_t first, int64_t last);
void avx512_cosine(const Tiles&, const Side& left, const Side& right, int64_t first, int64_t last);
#endif

}  // namespace dgc
