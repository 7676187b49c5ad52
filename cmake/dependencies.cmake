# Every library of others, found once and at the top: imported targets are visible from the folder that found them down.
# Debian's package names are in packages.txt; what an installed twinrun needs again is in twinrunConfig.cmake.in.
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

# dygraphs, minified: what report.html draws its charts with. Inlined at build time; nothing of it is in the tree.
find_path(TWINRUN_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs /usr/share/nodejs/dygraphs/dist
  DOC "Folder of dygraph.min.js and dygraph.min.css, version 2")
if(NOT TWINRUN_DYGRAPHS)
  message(FATAL_ERROR "dygraph.min.js is missing: install Debian's libjs-dygraphs (./dev packages build), or give its "
    "folder with -DTWINRUN_DYGRAPHS=DIR")
endif()
