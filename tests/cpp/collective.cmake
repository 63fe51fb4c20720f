if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_bounces SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bounces_test.cpp FLOORS collective PROVES threads)
