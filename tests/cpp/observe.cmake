if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_star SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/star_test.cpp FLOORS observe PROVES values)
