# Installs into an empty prefix, then builds a separate project against it alone. Run by ctest (tests/CMakeLists.txt).
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)
step("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
step("installed twinrun --version" ${prefix}/bin/twinrun --version)
foreach(file bash-completion/completions/twinrun zsh/site-functions/_twinrun fish/vendor_completions.d/twinrun.fish
    man/man1/twinrun.1 man/man1/twinrun-bisect-op.1)
  if(NOT EXISTS ${prefix}/share/${file})
    message(FATAL_ERROR "share/${file} is not installed")
  endif()
endforeach()

# Copy the consumer out of the source tree, so that headers can come only from the prefix.
file(COPY ${CONSUMER_DIR}/ DESTINATION ${SCRATCH}/consumer)
step("configure the consumer" ${CMAKE_COMMAND} -S ${SCRATCH}/consumer -B ${SCRATCH}/build -G ${GENERATOR}
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix})
step("build the consumer" ${CMAKE_COMMAND} --build ${SCRATCH}/build)
step("run the consumer" ${SCRATCH}/build/consumer)
if(NOT output MATCHES "^[0-9a-f]+ cpu")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
