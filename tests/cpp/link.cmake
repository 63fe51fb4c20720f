if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_link SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/link_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/tcp_link_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/stream_book_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/stream_silence_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/arena_test.cpp FLOORS link PROVES memory threads
             SANITIZED 2)
