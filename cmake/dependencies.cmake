# Finds every third-party library once, at the top, because imported targets are visible only below the folder that finds them.
# packages.txt has the names of Debian's packages; twinrunConfig.cmake.in finds what an installed twinrun needs again.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(ZLIB REQUIRED)
find_package(LibArchive REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(Protobuf REQUIRED)

# dygraphs, minified, draws the charts of report.html. It is inlined at build time and not part of the repository.
find_path(TWINRUN_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs /usr/share/nodejs/dygraphs/dist
  DOC "Folder of dygraph.min.js and dygraph.min.css, version 2")
if(NOT TWINRUN_DYGRAPHS)
  message(FATAL_ERROR "dygraph.min.js is missing: install Debian's libjs-dygraphs (./dev packages build), or give its "
    "folder with -DTWINRUN_DYGRAPHS=DIR")
endif()
