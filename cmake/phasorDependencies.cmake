# The libraries that phasor links, as imported targets phasor::jansson, phasor::pcre2,
# phasor::utf8proc, phasor::xxhash, phasor::zstd and, with PHASOR_URING, phasor::uring, with
# PHASOR_HWLOC phasor::hwloc. This file serves the build and, installed, the CMake package (whose
# static library needs the same). Headers and libraries are searched where CMake searches:
# CMAKE_PREFIX_PATH can name one unpacked prefix. With PHASOR_STATIC_DEPS only static libraries are
# taken. PHASOR_MISSING lists what was not found, in words.

set(PHASOR_MISSING "")

# phasor_dependency(name HEADER file LIBRARY name PACKAGE what-Debian-calls-it)
macro(phasor_dependency name)
    cmake_parse_arguments(PHASOR_DEP "" "HEADER;LIBRARY;PACKAGE" "" ${ARGN})
    if(PHASOR_STATIC_DEPS)
        set(PHASOR_DEP_KIND STATIC)
        set(PHASOR_DEP_NAME
            ${CMAKE_STATIC_LIBRARY_PREFIX}${PHASOR_DEP_LIBRARY}${CMAKE_STATIC_LIBRARY_SUFFIX})
    else()
        set(PHASOR_DEP_KIND LIBRARY)
        set(PHASOR_DEP_NAME ${PHASOR_DEP_LIBRARY})
    endif()
    find_path(PHASOR_${name}_INCLUDE ${PHASOR_DEP_HEADER})
    find_library(PHASOR_${name}_${PHASOR_DEP_KIND} NAMES ${PHASOR_DEP_NAME})
    mark_as_advanced(PHASOR_${name}_INCLUDE PHASOR_${name}_${PHASOR_DEP_KIND})
    if(NOT PHASOR_${name}_INCLUDE)
        list(APPEND PHASOR_MISSING "${PHASOR_DEP_HEADER} (package ${PHASOR_DEP_PACKAGE})")
    elseif(NOT PHASOR_${name}_${PHASOR_DEP_KIND})
        list(APPEND PHASOR_MISSING "${PHASOR_DEP_NAME} (package ${PHASOR_DEP_PACKAGE})")
    elseif(NOT TARGET phasor::${name})
        add_library(phasor::${name} UNKNOWN IMPORTED)
        set_target_properties(phasor::${name} PROPERTIES
                              IMPORTED_LOCATION "${PHASOR_${name}_${PHASOR_DEP_KIND}}"
                              INTERFACE_INCLUDE_DIRECTORIES "${PHASOR_${name}_INCLUDE}")
    endif()
endmacro()

phasor_dependency(jansson HEADER jansson.h LIBRARY jansson PACKAGE libjansson-dev)
phasor_dependency(pcre2 HEADER pcre2.h LIBRARY pcre2-8 PACKAGE libpcre2-dev)
phasor_dependency(utf8proc HEADER utf8proc.h LIBRARY utf8proc PACKAGE libutf8proc-dev)
phasor_dependency(xxhash HEADER xxhash.h LIBRARY xxhash PACKAGE libxxhash-dev)
phasor_dependency(zstd HEADER zstd.h LIBRARY zstd PACKAGE libzstd-dev)
if(PHASOR_URING)
    phasor_dependency(uring HEADER liburing.h LIBRARY uring PACKAGE liburing-dev)
endif()
if(PHASOR_HWLOC) # shared always: a static one needs libudev, which has none
    set(PHASOR_DEP_STATIC ${PHASOR_STATIC_DEPS})
    set(PHASOR_STATIC_DEPS OFF)
    phasor_dependency(hwloc HEADER hwloc.h LIBRARY hwloc PACKAGE libhwloc-dev)
    set(PHASOR_STATIC_DEPS ${PHASOR_DEP_STATIC})
endif()
