# CUDA sources on the host, for the tests: they need NVIDIA's headers (types and bf16), a C++
# compiler, and no GPU, driver or nvcc. Sets PHASOR_CUDA_HOST.
include(CheckLanguage)
include(CheckCXXSourceCompiles)

find_program(PHASOR_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
             PATH_SUFFIXES bin DOC "The compiler of CUDA")
if(PHASOR_NVCC)
    get_filename_component(nvcc_folder ${PHASOR_NVCC} REALPATH)
    get_filename_component(nvcc_folder ${nvcc_folder}/../.. ABSOLUTE)
endif()
find_path(PHASOR_CUDA_INCLUDE cuda_runtime_api.h HINTS ${nvcc_folder}/include
          DOC "NVIDIA's headers: the include folder of a toolkit, or of the unpacked Python wheels")
# In the wheels of CUDA 13 nv/ lies one folder deeper, and crt/ is a wheel of its own.
set(cuda_includes ${PHASOR_CUDA_INCLUDE} ${PHASOR_CUDA_INCLUDE}/cccl)
check_language(CXX)

if(PHASOR_SANITIZE MATCHES "thread")
    set(why_not "the thread sanitizer does not know its fibers")
elseif(NOT PHASOR_CUDA_INCLUDE)
    set(why_not "no cuda_runtime_api.h was found; -DPHASOR_CUDA_INCLUDE=DIR names the include "
                "folder of a toolkit or wheel")
elseif(NOT CMAKE_CXX_COMPILER)
    set(why_not "there is no C++ compiler (package g++)")
else()
    enable_language(CXX)
    set(CMAKE_REQUIRED_INCLUDES ${cuda_includes})
    set(CMAKE_REQUIRED_FLAGS -std=c++17)
    check_cxx_source_compiles("#include <cuda_bf16.h>
                               #include <cuda_runtime_api.h>
                               int main() { return (int)__bfloat162float(__float2bfloat16(0)); }"
                              PHASOR_CUDA_HEADERS_WORK)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_FLAGS)
    if(NOT PHASOR_CUDA_HEADERS_WORK)
        set(why_not "the headers in ${PHASOR_CUDA_INCLUDE} are not whole (CUDA 13: the wheels "
                    "nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl together)")
    endif()
endif()

if(why_not)
    message(STATUS "CUDA sources are not tested on the host: " ${why_not})
    set(PHASOR_CUDA_HOST OFF)
else()
    message(STATUS "CUDA sources are tested on the host, with the headers in ${PHASOR_CUDA_INCLUDE}")
    set(PHASOR_CUDA_HOST ON)
endif()

# phasor_host_sources(TARGET FILE.cu...): each as a generated source that includes it.
function(phasor_host_sources target)
    foreach(source ${ARGN})
        get_filename_component(name ${source} NAME)
        set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_${name}.cpp)
        file(GENERATE OUTPUT ${generated} CONTENT "#include \"${source}\"\n")
        target_sources(${target} PRIVATE ${generated})
    endforeach()
endfunction()
