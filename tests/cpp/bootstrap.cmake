if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_bootstrap_mesh SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_mesh_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_carry_test.cpp
             FLOORS bootstrap THREADS PROVES memory)
isthmus_test(test_bootstrap_rendezvous SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_rendezvous_test.cpp FLOORS bootstrap
             THREADS PROVES memory)
isthmus_test(test_bootstrap_streams SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_streams_test.cpp FLOORS bootstrap THREADS PROVES memory)
isthmus_test(test_side_by_side SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/side_by_side_test.cpp FLOORS bootstrap PROVES threads)
isthmus_test(test_outbox SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/outbox_test.cpp FLOORS bootstrap PROVES memory)
isthmus_test(test_silence SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_silence_test.cpp FLOORS bootstrap PROVES values)
isthmus_test(test_ticket SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ticket_test.cpp FLOORS bootstrap THREADS PROVES memory)
isthmus_test(test_newcomers SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/newcomers_test.cpp FLOORS bootstrap THREADS PROVES memory)
isthmus_test(test_elsewhere SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/elsewhere_test.cpp FLOORS bootstrap THREADS PROVES memory)
isthmus_test(test_bootstrap_sharing SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_sharing_test.cpp FLOORS api THREADS PROVES memory)
isthmus_test(test_meeting SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/meeting_test.cpp FLOORS api THREADS PROVES memory)
isthmus_test(test_bootstrap_process SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bootstrap_process_test.cpp FLOORS bootstrap
             PROVES memory)

# The fuzz targets: replayed with fixed mutations by every build; fuzzed by libFuzzer where clang builds with
# ISTHMUS_FUZZ=ON.
set(fuzz ${PROJECT_SOURCE_DIR}/tests/fuzz)
isthmus_test(test_fuzz_replay SOURCES ${fuzz}/replay_test.cpp ${fuzz}/targets.cpp FLOORS comm PROVES values memory
             SANITIZED 2 COST 200)
option(ISTHMUS_FUZZ "Build the libFuzzer targets fuzz_* (clang)" OFF)
if(ISTHMUS_FUZZ)
  target_compile_options(isthmus_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(isthmus_flags INTERFACE -fsanitize=address,undefined)
  foreach(target frames handshake endpoint greeting rendezvous ticket address blob profile data_stream control)
    add_executable(fuzz_${target} ${fuzz}/libfuzzer_main.cpp ${fuzz}/targets.cpp)
    target_compile_definitions(fuzz_${target} PRIVATE ISTHMUS_FUZZ_TARGET="${target}")
    target_link_libraries(fuzz_${target} PRIVATE isthmus_comm)
    target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
