// The instruction set for which a file is compiled: build.py compiles each of them several times.
#pragma once

#ifndef DGC_ISA
#define DGC_ISA baseline
#endif
#define DGC_JOIN(a, b) a##b
#define DGC_NAME(a, b) DGC_JOIN(a, b)
