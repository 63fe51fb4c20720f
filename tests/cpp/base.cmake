isthmus_test(test_base SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/base_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/lock_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/handles_test.cpp FLOORS base PROVES memory threads)
isthmus_test(test_doorbell SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/doorbell_test.cpp FLOORS base PROVES threads)
