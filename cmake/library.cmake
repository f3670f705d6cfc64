# libphasor from the objects of all parts, static and shared. Both give phasor_* and nothing else:
# the names inside have no prefix and must not meet those of a caller.
get_property(objects GLOBAL PROPERTY PHASOR_OBJECTS)
get_property(object_targets GLOBAL PROPERTY PHASOR_OBJECT_TARGETS)
set(phasor_libraries phasor_static)
set(phasor_dependencies phasor::jansson phasor::pcre2 phasor::utf8proc phasor::xxhash
    phasor::zstd Threads::Threads ${CMAKE_DL_LIBS} m)
if(PHASOR_URING)
    list(APPEND phasor_dependencies phasor::uring)
endif()
if(PHASOR_HWLOC)
    list(APPEND phasor_dependencies phasor::hwloc)
endif()
if(PHASOR_CUDA)
    list(APPEND phasor_dependencies CUDA::cudart_static)
endif()

# An archive has no version script, so its objects are joined into one, in which what is hidden
# becomes local.
set(joined ${CMAKE_CURRENT_BINARY_DIR}/libphasor.o)
add_custom_command(OUTPUT ${joined}
                   COMMAND ${CMAKE_LINKER} -r -o ${joined} ${objects}
                   COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${joined}
                   DEPENDS ${objects} ${object_targets}
                   COMMENT "Joining the objects of libphasor.a"
                   COMMAND_EXPAND_LISTS VERBATIM)
add_library(phasor_static STATIC ${joined})
set_source_files_properties(${joined} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(phasor_static PROPERTIES OUTPUT_NAME phasor LINKER_LANGUAGE C)
target_link_libraries(phasor_static PRIVATE ${phasor_dependencies})

# Static libraries of a distribution are not compiled for use within a shared one.
if(NOT PHASOR_STATIC_DEPS)
    list(APPEND phasor_libraries phasor_shared)
    set(map ${CMAKE_SOURCE_DIR}/cmake/phasor.map)
    add_library(phasor_shared SHARED ${objects})
    set_target_properties(phasor_shared PROPERTIES OUTPUT_NAME phasor LINKER_LANGUAGE C
                          VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${map})
    target_link_libraries(phasor_shared PRIVATE ${phasor_dependencies})
    target_link_options(phasor_shared PRIVATE -Wl,--version-script=${map})
    if(NOT PHASOR_SANITIZE)
        target_link_options(phasor_shared PRIVATE -Wl,--no-undefined)
    endif()
endif()

# What nvcc makes needs some words of C++.
if(PHASOR_CUDA)
    execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libstdc++.a
                    OUTPUT_VARIABLE cxx_archive OUTPUT_STRIP_TRAILING_WHITESPACE)
    target_link_libraries(phasor_static PRIVATE ${cxx_archive})
    if(TARGET phasor_shared)
        target_link_libraries(phasor_shared PRIVATE stdc++)
    endif()
endif()

foreach(library ${phasor_libraries})
    target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
