if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_device SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/device_test.cpp FLOORS device LABELS threads)
