// The gradients of all parameters of a bucket in one call, where Python would need several for each.
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

bool is_plain(const Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.layout() == at::kStrided;
}

// Where the elements lie; 0 for a tensor that has no such place.
int64_t address(const Tensor& tensor) {
  return is_plain(tensor) ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0;
}

bool is_aligned(const Tensor& tensor) { return address(tensor) % static_cast<int64_t>(tensor.itemsize()) == 0; }

void check_sizes(size_t count, size_t other) {
  TORCH_CHECK(count == other, "dgc: ", count, " tensors, and numbers for ", other);
}

// The gradients that nothing else refers to, flat and without a graph, and the places of the others.
std::tuple<std::vector<Tensor>, std::vector<int64_t>> lend(at::TensorList gradients, at::ScalarType dtype) {
  std::vector<Tensor> lent;
  std::vector<int64_t> others;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    const bool fits = is_plain(gradient) && gradient.scalar_type() == dtype && gradient.is_contiguous() &&
                      is_aligned(gradient) && gradient.storage().use_count() == 1;
    if (fits) {
      lent.push_back(gradient.variable_data().view(-1));
    } else {
      others.push_back(static_cast<int64_t>(i));
    }
  }
  return {lent, others};
}

// Copy gradients to their places in `flat`, in the order of their shapes.
void gather(const Tensor& flat, at::TensorList gradients, at::IntArrayRef offsets) {
  check_sizes(gradients.size(), offsets.size());
  at::NoGradGuard no_graph;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor gradient = gradients[i].is_sparse() ? gradients[i].to_dense() : gradients[i];
    flat.narrow(0, offsets[i], gradient.numel()).view(gradient.sizes()).copy_(gradient);
  }
}

// The places of the parameters whose gradient is another tensor than it was, or was written to.
std::vector<int64_t> touched(at::TensorList parameters, at::TensorList gradients, at::IntArrayRef versions,
                             at::IntArrayRef addresses) {
  check_sizes(parameters.size(), gradients.size());
  check_sizes(parameters.size(), versions.size());
  check_sizes(parameters.size(), addresses.size());
  std::vector<int64_t> found;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& gradient = gradients[i];
    const bool is_same = parameters[i].grad().is_same(gradient) &&
                         static_cast<int64_t>(gradient._version()) == versions[i] && address(gradient) == addresses[i];
    if (!is_same) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

// Make every parameter's gradient a view of `flat`, whose version is counted apart.
void show(at::TensorList parameters, const Tensor& flat, at::IntArrayRef offsets) {
  check_sizes(parameters.size(), offsets.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor part = flat.narrow(0, offsets[i], parameters[i].numel()).view(parameters[i].sizes());
    parameters[i].mutable_grad() = part.variable_data();
  }
}

// Whether the C++ kernels can read and write all of these tensors.
bool fit(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return is_plain(tensor) && tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.is_contiguous() && is_aligned(tensor);
  });
}

// Whether no two contiguous tensors overlap.
bool apart(at::TensorList tensors) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Tensor& tensor : tensors) {
    if (tensor.numel() > 0) ranges.emplace_back(address(tensor), static_cast<int64_t>(tensor.nbytes()));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].first + ranges[i - 1].second > ranges[i].first) return false;
  }
  return true;
}

}  // namespace

// Without a kernel of their own for autograd: they set gradients, and compute nothing.
TORCH_LIBRARY_FRAGMENT(dgc, library) {
  library.def("lend(Tensor[] gradients, ScalarType dtype) -> (Tensor[], int[])", lend);
  library.def("gather(Tensor(a!) flat, Tensor[] gradients, int[] offsets) -> ()", gather);
  library.def("touched(Tensor[] parameters, Tensor[] gradients, int[] versions, int[] addresses) -> int[]", touched);
  library.def("show(Tensor[] parameters, Tensor flat, int[] offsets) -> ()", show);
  library.def("fit(Tensor[] tensors) -> bool", fit);
  library.def("apart(Tensor[] tensors) -> bool", apart);
}
