if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_device SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/device_test.cpp FLOORS device PROVES memory threads)
target_link_libraries(test_device PRIVATE test_rehearsal_file)
# The same of runtimes that are asked once a process what they can.
function(isthmus_device_variant name runtime switch)
  if(ISTHMUS_TESTS)
    isthmus_run(${name} PROGRAM test_device ARGUMENTS --gtest_filter=Runtimes*:Hip.* THREADS PROVES memory
                ENVIRONMENT "TEST_RUNTIME=${runtime}" ${switch})
  endif()
endfunction()
isthmus_device_variant(test_device_without_values cuda REHEARSAL_CUDA_NO_STREAM_VALUES=1)
isthmus_device_variant(test_device_with_reports acl REHEARSAL_ACL_NO_HOST_FUNC=1)
# And of the versions that differ in what they call things.
isthmus_device_variant(test_device_hip_5 hip TEST_HIP=5)
isthmus_device_variant(test_device_hip_6 hip TEST_HIP=6)
