# Finds every third-party library once, at the top, because imported targets are visible only below the folder that finds them.
# packages.txt has the names of Debian's packages; twinrunConfig.cmake.in finds what an installed twinrun needs again.
option(TWINRUN_STATIC "Link every third-party library statically, as the wheel does (cmake/static.sh)" OFF)
set(TWINRUN_STATIC_PREFIX "" CACHE PATH "Where cmake/static.sh installed HDF5 and libarchive, for TWINRUN_STATIC")

if(TWINRUN_STATIC)
  if(NOT EXISTS "${TWINRUN_STATIC_PREFIX}/lib/libhdf5.a" OR NOT EXISTS "${TWINRUN_STATIC_PREFIX}/lib/libarchive.a")
    message(FATAL_ERROR "TWINRUN_STATIC needs lib/libhdf5.a and lib/libarchive.a in TWINRUN_STATIC_PREFIX, which is "
      "'${TWINRUN_STATIC_PREFIX}': run ./dev wheel, or give the folder that cmake/static.sh printed")
  endif()
  set(ZLIB_USE_STATIC_LIBS ON)
  set(Boost_USE_STATIC_LIBS ON)
  set(Protobuf_USE_STATIC_LIBS ON)
  add_link_options(-static-libstdc++ -static-libgcc)
endif()

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(Protobuf REQUIRED)
if(TWINRUN_STATIC)
  # Debian's libhdf5.a needs curl and OpenSSL, its libarchive.a needs eight compressors, and fmt has no static library.
  add_library(hdf5::hdf5 STATIC IMPORTED)
  set_target_properties(hdf5::hdf5 PROPERTIES IMPORTED_LOCATION ${TWINRUN_STATIC_PREFIX}/lib/libhdf5.a
    INTERFACE_INCLUDE_DIRECTORIES ${TWINRUN_STATIC_PREFIX}/include)
  target_link_libraries(hdf5::hdf5 INTERFACE ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS} m)
  add_library(LibArchive::LibArchive STATIC IMPORTED)
  set_target_properties(LibArchive::LibArchive PROPERTIES IMPORTED_LOCATION ${TWINRUN_STATIC_PREFIX}/lib/libarchive.a
    INTERFACE_INCLUDE_DIRECTORIES ${TWINRUN_STATIC_PREFIX}/include)
  target_link_libraries(LibArchive::LibArchive INTERFACE ZLIB::ZLIB)
  find_path(TWINRUN_FMT fmt/format-inl.h REQUIRED)
  add_library(fmt::fmt INTERFACE IMPORTED)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1
    INTERFACE_INCLUDE_DIRECTORIES ${TWINRUN_FMT})
else()
  find_package(fmt REQUIRED)
  find_package(LibArchive REQUIRED)
  find_package(HDF5 REQUIRED COMPONENTS C)
endif()

# Headers only, for processors other than x86.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  find_path(TWINRUN_SIMDE simde/x86/avx2.h REQUIRED)
  find_path(TWINRUN_HIGHWAY hwy/highway.h REQUIRED)
endif()

option(TWINRUN_MPI "Also build twinrun_mpi, over ranks of this system's MPI, and twinrun_mpich (docs/developers/processors.md)" OFF)
if(TWINRUN_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI REQUIRED COMPONENTS CXX)
  # MPICH beside another MPI, where it is installed.
  find_package(PkgConfig)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(MPICH IMPORTED_TARGET mpich)
  endif()
endif()

# dygraphs, minified, draws the charts of report.html. It is inlined at build time and not part of the repository.
find_path(TWINRUN_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs /usr/share/nodejs/dygraphs/dist
  NO_CMAKE_FIND_ROOT_PATH DOC "Folder of dygraph.min.js and dygraph.min.css, version 2")
if(NOT TWINRUN_DYGRAPHS)
  message(FATAL_ERROR "dygraph.min.js is missing: install Debian's libjs-dygraphs (./dev packages build), or give its "
    "folder with -DTWINRUN_DYGRAPHS=DIR")
endif()
