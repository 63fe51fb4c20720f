if(ISTHMUS_CORE_ONLY)
  return()
endif()
isthmus_test(test_rehearsal SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_nccl_test.cpp
             ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_stream_test.cpp LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_rehearsal_engine SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_engine_test.cpp LIBRARIES ${CMAKE_DL_LIBS})
isthmus_test(test_rehearsal_hip SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_hip_test.cpp LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_rehearsal_acl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_acl_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_acl_misuse_test.cpp
             LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_rehearsal_hccl SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_hccl_test.cpp ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_hccl_comms_test.cpp
             LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
isthmus_test(test_rehearsal_reset SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/rehearsal_reset_test.cpp LIBRARIES ${CMAKE_DL_LIBS} LABELS threads)
foreach(name test_rehearsal test_rehearsal_engine test_rehearsal_hip test_rehearsal_acl test_rehearsal_hccl test_rehearsal_reset)
  target_compile_definitions(${name} PRIVATE REHEARSAL_DIR="${CMAKE_BINARY_DIR}/rehearsal")
  add_dependencies(${name} rehearsal_all)
endforeach()
