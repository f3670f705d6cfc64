# What a package of phasor holds: program, libraries, header, manual and other pages, box files, and the files by
# which pkg-config and CMake find it.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/phasor)

install(TARGETS phasor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
foreach(library ${phasor_libraries})
    string(REPLACE phasor_ "" kind ${library})
    install(TARGETS ${library} EXPORT phasor_${kind}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT phasor_${kind} FILE phasorTargets-${kind}.cmake NAMESPACE phasor::
            DESTINATION ${package_dir})
endforeach()
install(FILES include/phasor.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/man/*.1)
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
file(GLOB box_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/boxes/*.json)
install(FILES ${box_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/phasor/boxes)
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)

# phasor.pc finds the prefix from its own place, so that an installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
    set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
    file(RELATIVE_PATH up /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
    string(REGEX REPLACE "/$" "" up "${up}")
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
set(pc_uring "")
if(PHASOR_URING)
    set(pc_uring " liburing")
endif()
set(pc_hwloc "")
if(PHASOR_HWLOC) # by name: what hwloc.pc asks for beside it serves a static hwloc
    set(pc_hwloc "-lhwloc ")
endif()
configure_file(cmake/phasor.pc.in phasor.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/phasor.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/phasorConfig.cmake.in phasorConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 the interface may change with the minor version (include/phasor.h).
write_basic_package_version_file(phasorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/phasorConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/phasorConfigVersion.cmake
              cmake/phasorDependencies.cmake
        DESTINATION ${package_dir})
