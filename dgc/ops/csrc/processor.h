// What the processor at hand can execute.
#pragma once

namespace dgc {

#ifdef DGC_X86
inline bool has_avx2() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  return has;
}

inline bool has_avx512() {
  static const bool has = has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}
#endif

}  // namespace dgc
