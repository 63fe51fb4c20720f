if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_leader_exchange SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/leader_exchange_test.cpp FLOORS observe PROVES values)
