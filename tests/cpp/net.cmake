isthmus_test(test_net SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/net_test.cpp FLOORS net THREADS PROVES memory)
isthmus_test(test_net_gate SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/net_gate_test.cpp FLOORS net THREADS PROVES memory)
