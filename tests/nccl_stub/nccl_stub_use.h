/* The stub in a test program: phasor_uses_nccl_stub of its CMakeLists.txt. */
#ifndef PHASOR_TESTS_NCCL_STUB_USE_H
#define PHASOR_TESTS_NCCL_STUB_USE_H

#include "nccl_stub.h"

const struct nccl_stub *stub(void);

#endif
