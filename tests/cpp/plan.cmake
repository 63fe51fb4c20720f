# The prover: a library for the C++ tests, and a shared one for the Python tests.
set(prover ${CMAKE_CURRENT_SOURCE_DIR}/prover)
add_library(isthmus_prover_objects OBJECT ${prover}/run.cpp ${prover}/memory.cpp ${prover}/expect.cpp ${prover}/service.cpp)
target_include_directories(isthmus_prover_objects PUBLIC ${prover})
target_link_libraries(isthmus_prover_objects PUBLIC isthmus_plan)
add_library(isthmus_prover_core STATIC $<TARGET_OBJECTS:isthmus_prover_objects>)
target_include_directories(isthmus_prover_core PUBLIC ${prover})
target_link_libraries(isthmus_prover_core PUBLIC isthmus_plan)
if(NOT CMAKE_CROSSCOMPILING AND NOT ISTHMUS_SANITIZE)  # a sanitizer's would not load into Python
  add_library(isthmus_prover SHARED $<TARGET_OBJECTS:isthmus_prover_objects>)
  target_link_libraries(isthmus_prover PRIVATE isthmus_plan)
endif()
isthmus_test(test_cursor SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/cursor_test.cpp FLOORS plan PROVES values)
isthmus_test(test_plan SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/plan_test.cpp FLOORS plan LIBRARIES isthmus_prover_core
             PROVES values)
isthmus_test(test_plan_bridge SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/plan_bridge_test.cpp FLOORS plan LIBRARIES isthmus_prover_core
             PROVES values)
isthmus_test(test_collective SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/collective_test.cpp FLOORS plan LIBRARIES isthmus_prover_core
             PROVES values)
isthmus_test(test_plan_proof SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/plan_proof_test.cpp FLOORS plan
             LIBRARIES isthmus_prover_core PROVES values PRODUCT 2 SPLIT 2 TIMEOUT 1800 COST 400)
isthmus_test(test_plan_mutation SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/plan_mutation_test.cpp FLOORS plan
             LIBRARIES isthmus_prover_core PROVES values COST 100)
