# How a room is built: one static library, its exact dependencies, and the flags that the numeric contract requires.
include(GNUInstallDirs)
include(dependencies)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
find_program(TWINRUN_CCACHE ccache)
if(TWINRUN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TWINRUN_CCACHE})
endif()

# Embedded files are long strings, of which -Wpedantic of clang warns. In g++ 12, -Wrestrict warns falsely at "text" + std::string (GCC bug 105651), and -Wstringop-overflow inside fmt.
# Contract rules 1 and 2: no contraction, no fast-math, and x86-64-v3 as the minimum.
add_library(twinrun_flags INTERFACE)
target_compile_options(twinrun_flags INTERFACE
  -ffp-contract=off -Wall -Wextra -Wpedantic -Wno-missing-field-initializers 
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
  $<$<CXX_COMPILER_ID:Clang>:-Wno-overlength-strings>)
# Sources for the instruction sets of one processor end with their names.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(twinrun_flags INTERFACE -march=x86-64-v3)
  set(TWINRUN_OF_OTHER_PROCESSORS "_neon\\.cc$")
else()
  set(TWINRUN_OF_OTHER_PROCESSORS "(_avx2|_avx512|_avx512bf16|_amx|blocks_wide)\\.cc$")
  target_include_directories(twinrun_flags SYSTEM INTERFACE ${TWINRUN_SIMDE} ${TWINRUN_HIGHWAY})
endif()
if(TWINRUN_SANITIZE)
  set(sanitized $<NOT:$<BOOL:$<TARGET_PROPERTY:TWINRUN_NOT_SANITIZED>>>)
  target_compile_options(twinrun_flags INTERFACE
    -fno-omit-frame-pointer "$<${sanitized}:-fsanitize=${TWINRUN_SANITIZE};-fno-sanitize-recover=all>")
  if(TWINRUN_SANITIZE MATCHES "address,undefined")  # the address sanitizer reports these as well
    target_compile_options(twinrun_flags INTERFACE "$<${sanitized}:-fno-sanitize=null,object-size,vptr>"
      "$<${sanitized}:-fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/not_sanitized.txt>")
  endif()
  target_link_options(twinrun_flags INTERFACE -fsanitize=${TWINRUN_SANITIZE})
endif()
if(TWINRUN_FUZZ)
  target_compile_options(twinrun_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(TWINRUN_COVERAGE)
  target_compile_options(twinrun_flags INTERFACE --coverage)
  target_link_options(twinrun_flags INTERFACE --coverage)
endif()

set(TWINRUN_ROOMS "" CACHE INTERNAL "")

# twinrun_unity(TARGET [COUNT]): compiles COUNT sources at once, or eight. Anonymous namespaces are then shared, and the compiler
# reports duplicate names. For work on a few files, disable it with TWINRUN_UNITY=OFF in the environment of ./dev, or with the preset dev.
option(TWINRUN_UNITY "Compile several sources at once: a cold build in less than half the time" ON)
function(twinrun_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TWINRUN_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(ARGC GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${ARGV1})
  endif()
endfunction()

# twinrun_room(NAME [APART] [DIRS dir...] [LINKS target...]): a library of every .cc in DIRS (default: this folder). APART compiles
# its files one by one.
function(twinrun_room name)
  cmake_parse_arguments(ARG "APART" "" "DIRS;LINKS;PRIVATE_LINKS" ${ARGN})
  if(NOT ARG_DIRS)
    set(ARG_DIRS .)
  endif()
  set(sources)
  foreach(dir ${ARG_DIRS})
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cc)
    list(APPEND sources ${found})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "${TWINRUN_OF_OTHER_PROCESSORS}")
  add_library(twinrun_${name} STATIC ${sources})
  add_library(twinrun::${name} ALIAS twinrun_${name})
  target_include_directories(twinrun_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/twinrun>)
  target_link_libraries(twinrun_${name} PUBLIC ${ARG_LINKS} PRIVATE $<BUILD_INTERFACE:twinrun_flags> ${ARG_PRIVATE_LINKS})
  target_compile_features(twinrun_${name} PUBLIC cxx_std_20)
  set_target_properties(twinrun_${name} PROPERTIES EXPORT_NAME ${name})
  if(NOT ARG_APART)
    twinrun_unity(twinrun_${name})
  endif()
  set(TWINRUN_ROOMS ${TWINRUN_ROOMS} twinrun_${name} CACHE INTERNAL "")
endfunction()

# A release is compiled with -O2. -O3 takes g++ a third longer, and -O1 two thirds of the time.
function(twinrun_optimize level)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    foreach(target IN LISTS ARGN)
      target_compile_options(${target} PRIVATE ${level})
    endforeach()
  endif()
endfunction()
# twinrun_hot(TARGET..): rooms in whose loops a run spends its time.
function(twinrun_hot)
  twinrun_optimize(-O3 ${ARGN})
endfunction()
# twinrun_cold(TARGET..): rooms that read, word and draw, and compute nothing that anybody waits for.
function(twinrun_cold)
  twinrun_optimize(-O1 ${ARGN})
endfunction()

# twinrun_test(ROOM [LABEL label] [LINKS target...] [DEFINITIONS name=value...]): every *_test.cc in tests/ROOM, at any
# depth, is one GoogleTest program. The name of a test or suite decides its label: *Slow* is labelled slow instead of LABEL,
# *Thread* is labelled LABEL-threads, which .ci/run runs under the thread sanitizer. *FromJax* waits for steps.from_jax.
function(twinrun_test room)
  cmake_parse_arguments(ARG "" "LABEL" "LINKS;DEFINITIONS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${room}_tests ${sources})
  target_include_directories(${room}_tests PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${room}_tests PRIVATE TWINRUN_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ${ARG_DEFINITIONS})
  target_link_libraries(${room}_tests PRIVATE ${ARG_LINKS} twinrun_flags GTest::gtest GTest::gtest_main)
  twinrun_test_options(${room}_tests)
  # Without optimization a batch of tests takes 25 s for 34 s by g++, and 21 s for 51 s by clang under sanitizers. Tests of these rooms
  # compute, or hold the only copies of templates that readers spend their time in.
  if(NOT room MATCHES "^(base|backends|reference|fuzz)$")
    target_compile_options(${room}_tests PRIVATE -O0)
  endif()
  # More at once is a sixth faster. The tests of scenarios have equal names in unnamed namespaces.
  if(room STREQUAL "scenarios")
    twinrun_unity(${room}_tests)
  else()
    twinrun_unity(${room}_tests 16)
  endif()
  # Each test has one label, because gtest_discover_tests flattens lists. `ctest -L` accepts a pattern, so -L fast also
  # finds fast-threads.
  twinrun_discover(${room} "-*Slow*:*Thread*:*FromJax*" ${ARG_LABEL})
  twinrun_discover(${room} "*FromJax*-*Slow*:*Thread*" ${ARG_LABEL} FIXTURES_REQUIRED steps_from_jax)
  twinrun_discover(${room} "*Thread*-*Slow*" ${ARG_LABEL}-threads)
  twinrun_discover(${room} "*Slow*" slow)
endfunction()

# Tests take half of the build's time, so they are compiled with -O1, and only the thread sanitizer instruments them (it reports a
# race for every atomic that it does not see). Inline functions of headers that tests call are then not instrumented either; the
# standard library's assertions (_GLIBCXX_ASSERTIONS) stay enabled in both.
function(twinrun_test_options target)
  if(TWINRUN_SANITIZE)
    target_compile_definitions(${target} PRIVATE TWINRUN_SANITIZED)
  endif()
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(${target} PRIVATE -O1)
  elseif(TWINRUN_SANITIZE MATCHES "address")
    set_target_properties(${target} PROPERTIES TWINRUN_NOT_SANITIZED ON)
  endif()
endfunction()

function(twinrun_discover room filter label)
  gtest_discover_tests(${room}_tests TEST_PREFIX ${room}. TEST_FILTER ${filter} TEST_LIST ${room}_tests_${label}_${ARGC}
    DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${label} TIMEOUT 900 ${ARGN})
endfunction()
