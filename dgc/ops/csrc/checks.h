// Checks that the operators share.
#pragma once

#include <ATen/core/Tensor.h>

namespace dgc {

inline void check_flat(const at::Tensor& tensor, at::ScalarType type, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 1 && tensor.is_contiguous() && tensor.scalar_type() == type,
              "dgc: ", name, " must be a flat, contiguous ", type, " tensor on the CPU, got ", tensor.scalar_type(),
              " ", tensor.sizes());
}

}  // namespace dgc
