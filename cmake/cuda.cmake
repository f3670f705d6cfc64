# The CUDA build: kernels/cuda by nvcc, for each kind of GPU, with the runtime linked statically. The
# driver and other libraries are found when a program starts: one binary serves machines with and
# without GPUs.
if(PHASOR_SANITIZE)
    message(FATAL_ERROR "PHASOR_CUDA and PHASOR_SANITIZE do not go together: the sanitizers see "
                        "CUDA sources on the host, in every build with tests")
endif()
find_program(PHASOR_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
             PATH_SUFFIXES bin DOC "The compiler of CUDA")
if(NOT PHASOR_NVCC)
    message(FATAL_ERROR "PHASOR_CUDA needs nvcc, and there is none in PATH, CUDA_PATH or "
                        "/usr/local/cuda; -DPHASOR_NVCC=FILE names it")
endif()
set(CMAKE_CUDA_COMPILER ${PHASOR_NVCC})
execute_process(COMMAND ${PHASOR_NVCC} --version OUTPUT_VARIABLE nvcc_version)
string(REGEX REPLACE ".*release ([0-9]+)\\..*" "\\1" nvcc_version "${nvcc_version}")
# Machine code for what there is, and PTX for what will be. CUDA 13 has dropped Volta.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
    if(nvcc_version LESS 13)
        list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
    endif()
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Objects, as those of the other kernels. What multiplies by wgmma is for sm_90 alone, and its
# instructions are only in what is compiled for sm_90a; launchers take it there, whatever else there
# is code for.
file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB wgmma_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*_wgmma.cu)
list(REMOVE_ITEM cuda_sources ${wgmma_sources})
add_library(kernels_cuda_gpu OBJECT ${cuda_sources})
add_library(kernels_cuda_wgmma OBJECT ${wgmma_sources})
set_target_properties(kernels_cuda_wgmma PROPERTIES CUDA_ARCHITECTURES 90a-real)
foreach(objects kernels_cuda_gpu kernels_cuda_wgmma)
    target_include_directories(${objects} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
    target_compile_options(${objects} PRIVATE -Xcompiler=-fno-exceptions)
    if(PHASOR_WERROR)
        target_compile_options(${objects} PRIVATE -Werror=all-warnings)
    endif()
endforeach()

phasor_part(kernels_cuda kernels/cuda/device device CUDA::cudart_static)
target_sources(lib_kernels_cuda PRIVATE $<TARGET_OBJECTS:kernels_cuda_gpu>
                                        $<TARGET_OBJECTS:kernels_cuda_wgmma>)
target_link_libraries(lib_kernels_cuda PUBLIC stdc++) # what nvcc makes needs some words of C++
set_property(GLOBAL APPEND PROPERTY PHASOR_OBJECTS $<TARGET_OBJECTS:kernels_cuda_gpu>
                                                   $<TARGET_OBJECTS:kernels_cuda_wgmma>)
set_property(GLOBAL APPEND PROPERTY PHASOR_OBJECT_TARGETS kernels_cuda_gpu kernels_cuda_wgmma)
