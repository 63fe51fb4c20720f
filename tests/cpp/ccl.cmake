if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_ccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} LABELS plain)
set_tests_properties(test_ccl PROPERTIES PROCESSORS 2)  # its ranks wait for each other by polling
isthmus_test(test_island SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/island_test.cpp FLOORS api LABELS threads)
set_tests_properties(test_island PROPERTIES PROCESSORS 2)
