if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_comm_launcher SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/comm_launcher_test.cpp FLOORS comm PROVES values)
