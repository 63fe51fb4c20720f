if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_ccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} LABELS plain)
set_tests_properties(test_ccl PROPERTIES PROCESSORS 2)  # its ranks wait for each other by polling
isthmus_test(test_island SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/island_test.cpp FLOORS api LABELS threads)
set_tests_properties(test_island PROPERTIES PROCESSORS 2)
# The simulated vendor's driver and library; with them whole communicators of ranks that work on a device.
isthmus_test(test_nccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/nccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_hccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/hccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_device_rank SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/device_rank_test.cpp
             ${CMAKE_CURRENT_SOURCE_DIR}/device_message_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/stuck_call_test.cpp FLOORS api LIBRARIES ${CMAKE_DL_LIBS} LABELS threads
             TIMEOUT 900)
# Every collective, dtype and op on fleets of every vendor.
isthmus_test(test_fleet_matrix SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/fleet_matrix_test.cpp FLOORS api
             LIBRARIES test_matrix_data ${CMAKE_DL_LIBS}
             LABELS threads TIMEOUT 900)
# Who makes which call of a device's runtime.
isthmus_test(test_submission SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/submission_test.cpp FLOORS api LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
# Islands of a library whose ranks stand on two hosts.
isthmus_test(test_two_hosts SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/two_hosts_test.cpp FLOORS api LIBRARIES ${CMAKE_DL_LIBS}
             LABELS threads)
foreach(name test_nccl test_hccl test_device_rank test_fleet_matrix test_submission test_two_hosts)
  target_link_libraries(${name} PRIVATE test_rehearsal_file)
  set_tests_properties(${name} PROPERTIES PROCESSORS 2)
endforeach()
# The same of AMD's library, which has the interface of NVIDIA's. GoogleTest names its report after the program.
add_custom_command(TARGET test_nccl POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink test_nccl test_rccl
                   WORKING_DIRECTORY $<TARGET_FILE_DIR:test_nccl>)
add_test(NAME test_rccl COMMAND $<TARGET_FILE_DIR:test_nccl>/test_rccl)
set_tests_properties(test_rccl PROPERTIES PROCESSORS 2 TIMEOUT 300 LABELS threads ENVIRONMENT "TEST_CCL=rccl")
# Streams where each has a hardware queue of its own: no order is an accident.
add_test(NAME test_device_rank_streams COMMAND test_device_rank --gtest_filter=DeviceRank.*Stream*:DeviceMessage.*Stream*)
set_tests_properties(test_device_rank_streams PROPERTIES PROCESSORS 2 TIMEOUT 900 LABELS threads ENVIRONMENT REHEARSAL_QUEUES=16)
# The same ranks on a device whose streams cannot wait for the host: calls block instead, so what holds up a stream on purpose is left out.
add_test(NAME test_device_rank_without_values
         COMMAND test_device_rank --gtest_filter=*DeviceRanks*:*DeviceMessages*:-*Stream*:*InFlight*:*FromAny*)
set_tests_properties(test_device_rank_without_values PROPERTIES
                     PROCESSORS 2 TIMEOUT 900 LABELS threads ENVIRONMENT "REHEARSAL_CUDA_NO_STREAM_VALUES=1")
