# `cmake --install`: the binary, the rooms' libraries and headers, and find_package(twinrun).
include(CMakePackageConfigHelpers)

install(TARGETS ${TWINRUN_ROOMS} EXPORT twinrunTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS twinrun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
foreach(room program device scenarios checkpoints backends reports harness)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/twinrun
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "cli" EXCLUDE)
endforeach()
install(EXPORT twinrunTargets NAMESPACE twinrun:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twinrun)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/twinrunConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/twinrunConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twinrun)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/twinrunConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/twinrunConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/twinrunConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/twinrun)

# The wheel (pyproject.toml) installs this component alone. SKBUILD_SCRIPTS_DIR is the folder of what pip puts in bin/.
if(SKBUILD)
  install(TARGETS twinrun RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
  # Licences of what is linked in. Debian's packages have theirs in /usr/share/doc.
  if(TWINRUN_STATIC)
    set(licenses ${SKBUILD_METADATA_DIR}/licenses/linked)
    install(DIRECTORY ${TWINRUN_STATIC_PREFIX}/licenses/ DESTINATION ${licenses} COMPONENT wheel)
    foreach(package libboost-dev libeigen3-dev libfmt-dev libjs-dygraphs libprotobuf-dev libtomlplusplus-dev libxxhash-dev
        nlohmann-json3-dev zlib1g-dev)
      install(FILES /usr/share/doc/${package}/copyright DESTINATION ${licenses} RENAME ${package}.txt COMPONENT wheel)
    endforeach()
  endif()
endif()
