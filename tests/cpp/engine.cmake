if(ISTHMUS_CORE_ONLY)
  return()
endif()
# Ranks as threads, through the C interface: ThreadSanitizer sees the slot protocol and every hand-over.
isthmus_test(test_engine SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/engine_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/engine_types_test.cpp
             FLOORS api LIBRARIES test_matrix_data PROVES threads SPLIT 2 COST 60)
# Counts what the steady state asks of the system; a sanitizer's own calls and allocations would be counted with it.
if(NOT ISTHMUS_SANITIZE)
  isthmus_test(test_steady SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/steady_test.cpp FLOORS api PROVES values ALONE)
endif()
isthmus_test(test_out_of_band SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/out_of_band_test.cpp FLOORS rank PROVES threads)
isthmus_test(test_consensus SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/consensus_test.cpp FLOORS rank PROVES values memory
             SANITIZED 4)
isthmus_test(test_rings SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rings_test.cpp FLOORS collective PROVES memory)
isthmus_test(test_plan_inbox SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/plan_inbox_test.cpp FLOORS collective PROVES memory)
isthmus_test(test_operation_queue SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/operation_queue_test.cpp FLOORS collective PROVES memory threads)
isthmus_test(test_unexpected SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/unexpected_test.cpp FLOORS messages PROVES memory)
isthmus_test(test_match_order SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/match_order_test.cpp FLOORS messages PROVES memory)
