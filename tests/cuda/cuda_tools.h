/* The first GPU as the device of tests: device_open of device_tools.h opens it. */
#ifndef PHASOR_TESTS_CUDA_CUDA_TOOLS_H
#define PHASOR_TESTS_CUDA_CUDA_TOOLS_H

#include "device_tools.h"
#include "gpu.h"

#endif
