# `cmake --install`: the binary, the rooms' libraries and headers, and find_package(twinrun).
include(CMakePackageConfigHelpers)

install(TARGETS ${TWINRUN_ROOMS} EXPORT twinrunTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS twinrun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TWINRUN_MPI)
  install(TARGETS twinrun_mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
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

# Completion scripts and manual pages, which twinrun_dev prints. An instrumented program may not run here.
set(share ${PROJECT_BINARY_DIR}/share)
set(completion_bash ${share}/bash-completion/completions/twinrun)
set(completion_zsh ${share}/zsh/site-functions/_twinrun)
set(completion_fish ${share}/fish/vendor_completions.d/twinrun.fish)
if(NOT TWINRUN_SANITIZE AND NOT TWINRUN_COVERAGE)
  set(commands COMMAND ${CMAKE_COMMAND} -E rm -rf ${share} COMMAND twinrun_dev manual -o ${share}/man/man1)
  foreach(shell bash zsh fish)
    cmake_path(GET completion_${shell} PARENT_PATH folder)
    list(APPEND commands COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
      COMMAND twinrun_dev completion ${shell} > ${completion_${shell}})
  endforeach()
  add_custom_command(OUTPUT ${completion_bash} ${completion_zsh} ${completion_fish} ${share}/man/man1/twinrun.1
    ${commands} DEPENDS twinrun_dev)
  add_custom_target(twinrun_share ALL DEPENDS twinrun ${completion_fish})
  install(DIRECTORY ${share}/ DESTINATION ${CMAKE_INSTALL_DATADIR})
endif()

# The wheel (pyproject.toml) installs this component alone. SKBUILD_SCRIPTS_DIR is the folder of what pip puts in bin/,
# and SKBUILD_DATA_DIR of what it puts into the environment's folder.
if(SKBUILD)
  install(TARGETS twinrun RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
  install(DIRECTORY ${share}/ DESTINATION ${SKBUILD_DATA_DIR}/share COMPONENT wheel)
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
