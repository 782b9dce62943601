// Checks that the operators share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dgc {

// Whether the elements lie at multiples of their size, as loads of their type need it. Those of
// torch.frombuffer(data, offset=1) do not.
inline bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % tensor.element_size() == 0;
}

inline void check_flat(const at::Tensor& tensor, at::ScalarType type, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 1 && tensor.is_contiguous() && tensor.scalar_type() == type,
              "dgc: ", name, " must be a flat, contiguous ", type, " tensor on the CPU, got ", tensor.scalar_type(),
              " ", tensor.sizes());
  TORCH_CHECK(is_aligned(tensor), "dgc: ", name, " does not lie at a multiple of the size of its elements: clone it");
}

}  // namespace dgc
