if(ISTHMUS_CORE_ONLY OR NOT ISTHMUS_TESTS)
  return()
endif()
set(here ${CMAKE_CURRENT_SOURCE_DIR})
isthmus_test(test_ccl SOURCES ${here}/ccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} PROVES memory)
isthmus_test(test_stream_word SOURCES ${here}/stream_word_test.cpp FLOORS ccl PROVES memory threads)
isthmus_test(test_island SOURCES ${here}/island_test.cpp FLOORS api PROVES threads)
# The simulated vendor's driver and library; with them whole communicators of ranks that work on a device.
isthmus_test(test_nccl SOURCES ${here}/nccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} THREADS PROVES memory)
isthmus_test(test_hccl SOURCES ${here}/hccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} THREADS PROVES memory)
isthmus_test(test_device_rank SOURCES ${here}/device_rank_test.cpp ${here}/device_message_test.cpp ${here}/stuck_call_test.cpp
             FLOORS api LIBRARIES ${CMAKE_DL_LIBS} ARGUMENTS --gtest_filter=-Fleets/* PROVES memory threads SANITIZED 2 TIMEOUT 1800 COST 300)
isthmus_run(test_device_rank_fleets PROGRAM test_device_rank ARGUMENTS --gtest_filter=Fleets/* PROVES memory threads PRODUCT 3 SANITIZED 2
            TIMEOUT 1800 COST 250)
# Every collective, dtype and op on fleets of every vendor.
isthmus_test(test_fleet_matrix SOURCES ${here}/fleet_matrix_test.cpp FLOORS api LIBRARIES test_matrix_data ${CMAKE_DL_LIBS}
             THREADS PROVES memory PRODUCT 3 SPLIT 2 TIMEOUT 1800 COST 200)
# Who makes which call of a device's runtime.
isthmus_test(test_submission SOURCES ${here}/submission_test.cpp FLOORS api LIBRARIES ${CMAKE_DL_LIBS} PROVES threads)
# Islands of a library whose ranks stand on two hosts.
isthmus_test(test_two_hosts SOURCES ${here}/two_hosts_test.cpp FLOORS api LIBRARIES ${CMAKE_DL_LIBS} PROVES threads)
foreach(name test_nccl test_hccl test_device_rank test_fleet_matrix test_submission test_two_hosts)
  target_link_libraries(${name} PRIVATE test_rehearsal_file)
endforeach()
# The same of AMD's library, which has the interface of NVIDIA's.
isthmus_run(test_rccl PROGRAM test_nccl THREADS PROVES memory ENVIRONMENT TEST_CCL=rccl)
# Streams where each has a hardware queue of its own: no order is an accident.
isthmus_run(test_device_rank_streams PROGRAM test_device_rank ARGUMENTS --gtest_filter=DeviceRank.*Stream*:DeviceMessage.*Stream*
            PROVES threads TIMEOUT 1800 COST 50 ENVIRONMENT REHEARSAL_QUEUES=16)
# The same ranks on a device whose streams cannot wait for the host: calls block instead, so what holds up a stream on purpose is left out.
isthmus_run(test_device_rank_without_values PROGRAM test_device_rank
            ARGUMENTS --gtest_filter=*DeviceRanks*:*DeviceMessages*:-*Stream*:*InFlight*:*FromAny*
            THREADS PROVES memory PRODUCT 3 TIMEOUT 1800 COST 100 ENVIRONMENT REHEARSAL_CUDA_NO_STREAM_VALUES=1)
