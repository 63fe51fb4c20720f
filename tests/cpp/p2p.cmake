isthmus_test(test_recv_slots SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/recv_slots_test.cpp FLOORS p2p PROVES memory)
isthmus_test(test_staging_pool SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/staging_pool_test.cpp FLOORS p2p PROVES memory)
isthmus_test(test_flow_credit SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/flow_credit_test.cpp FLOORS p2p PROVES memory threads)
isthmus_test(test_library_pact SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/library_pact_test.cpp FLOORS p2p PROVES memory threads)
