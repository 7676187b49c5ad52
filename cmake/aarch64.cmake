# Builds for AArch64 on a Debian machine of another kind, with g++-aarch64-linux-gnu: ./dev arm. The libraries are in the folder
# TWINRUN_SYSROOT (cmake/sysroot.sh); tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(TWINRUN_SYSROOT "$ENV{TWINRUN_SYSROOT}" CACHE PATH "Where cmake/sysroot.sh put the libraries of AArch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TWINRUN_SYSROOT)
set(CMAKE_FIND_ROOT_PATH ${TWINRUN_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(libraries ${TWINRUN_SYSROOT}/usr/lib/aarch64-linux-gnu)
# FindHDF5 asks this machine's h5cc, whose flags hold for AArch64 as well, and finds the library itself in no folder that it knows.
set(HDF5_C_LIBRARY_hdf5 ${libraries}/hdf5/serial/libhdf5.so CACHE FILEPATH "HDF5 of AArch64")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries}:${TWINRUN_SYSROOT}/lib/aarch64-linux-gnu:${libraries}/hdf5/serial")
set(CMAKE_CROSSCOMPILING_EMULATOR
  qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries}:${TWINRUN_SYSROOT}/lib/aarch64-linux-gnu)
