# The C clients of the front doors, linked against the doors themselves: so they run under the sanitizers too, where a door opens the real
# library without RTLD_DEEPBIND. tests/interpose has the rest.
if(ISTHMUS_CORE_ONLY OR NOT ISTHMUS_TESTS OR CMAKE_CROSSCOMPILING)
  return()
endif()
function(interpose_client library vendor runtime)
  set(name interpose_client_${library})
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/interpose/${ARGN})
  target_link_libraries(${name} PRIVATE interpose_${library} ${runtime} isthmus_flags ${CMAKE_DL_LIBS})
  target_link_options(${name} PRIVATE LINKER:--allow-shlib-undefined)
  add_dependencies(${name} rehearsal_all interpose_bridge)
  add_dependencies(tests_threads ${name})
  string(TOUPPER ${library} setting)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS threads PROCESSORS 2 ENVIRONMENT
                       "ISTHMUS_REAL_${setting}=${CMAKE_BINARY_DIR}/rehearsal/${vendor};REHEARSAL_QUIET=1;REHEARSAL_DEVICES=2")
endfunction()
# Jobs of both vendors, as tests/interpose makes them, with programs and doors that a sanitizer watches.
find_program(ISTHMUS_PYTEST pytest)
if(ISTHMUS_SANITIZE AND ISTHMUS_PYTEST)
  add_test(NAME interpose_spanning COMMAND ${ISTHMUS_PYTEST} -q ${PROJECT_SOURCE_DIR}/tests/interpose/test_spanning_life.py)
  set_tests_properties(interpose_spanning PROPERTIES TIMEOUT 250 LABELS threads PROCESSORS 2 ENVIRONMENT
                       "INTERPOSE_BUILD=${CMAKE_BINARY_DIR};INTERPOSE_SANITIZER=${ISTHMUS_SANITIZE}")
endif()
interpose_client(nccl nvidia/libnccl.so.2 rehearsal_nvidia_libcuda_so_1 client.c)
interpose_client(rccl amd/librccl.so.1 rehearsal_amd_libamdhip64_so_6 client.c)
interpose_client(hccl ascend/libhccl.so rehearsal_ascend_libascendcl_so client_hccl.c)
target_compile_definitions(interpose_client_rccl PRIVATE AMD)
