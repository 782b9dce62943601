"""The C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer: ``make sanitize``.

build     the library with both sanitizers, beside the usual one in the cache
fuzz      calls of every operator with random arguments, most of which do not fit
"""
