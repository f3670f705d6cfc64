# A sanitizer that was asked for is there, or the configuration fails: never a check left out in
# silence.
include(CheckCSourceCompiles)

set(CMAKE_REQUIRED_FLAGS -fsanitize=${PHASOR_SANITIZE})
set(CMAKE_REQUIRED_LINK_OPTIONS -fsanitize=${PHASOR_SANITIZE})
string(MAKE_C_IDENTIFIER "PHASOR_SANITIZE_${PHASOR_SANITIZE}_WORKS" works)
check_c_source_compiles("int main(void) { return 0; }" ${works})
unset(CMAKE_REQUIRED_FLAGS)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(NOT ${works})
    message(FATAL_ERROR "${CMAKE_C_COMPILER} cannot build with -fsanitize=${PHASOR_SANITIZE}: "
                        "its sanitizer libraries are missing (gcc: libasan, libubsan, libtsan)")
endif()

add_compile_options(-fsanitize=${PHASOR_SANITIZE} -fno-omit-frame-pointer
                    -fno-sanitize-recover=all)
add_link_options(-fsanitize=${PHASOR_SANITIZE})

# The thread sanitizer sees the interleavings that happen: chance is helped along (base/perturb.h).
if(PHASOR_SANITIZE MATCHES "thread")
    add_compile_definitions(PHASOR_PERTURB)
endif()
