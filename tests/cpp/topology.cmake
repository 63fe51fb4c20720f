isthmus_test(test_topology SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/topology_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/profile_test.cpp
             FLOORS topology PROVES values)
