if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_ccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ccl_test.cpp FLOORS ccl LIBRARIES ${CMAKE_DL_LIBS} LABELS plain)
set_tests_properties(test_ccl PROPERTIES PROCESSORS 2)  # its ranks wait for each other by polling
