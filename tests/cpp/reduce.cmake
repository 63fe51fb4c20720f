isthmus_test(test_reduce SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/reduce_test.cpp FLOORS reduce PROVES values TIMEOUT 1800 COST 300)  # emulated, it takes minutes
isthmus_test(test_reduce_numbers SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/reduce_numbers_test.cpp FLOORS reduce PROVES values)
# The reference must not contract a product and a sum either (AArch64 would).
target_compile_options(test_reduce PRIVATE -ffp-contract=off)
target_compile_options(test_reduce_numbers PRIVATE -ffp-contract=off)
if(NOT ISTHMUS_SANITIZE)  # sanitizers add symbols of their own
  add_test(NAME test_reduce_symbols
           COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/reduce_symbols.sh ${CMAKE_NM} ${ISTHMUS_REDUCE_OBJECTS}
           COMMAND_EXPAND_LISTS)
  set_tests_properties(test_reduce_symbols PROPERTIES LABELS "proves_values;stands_on_reduce;about_reduce")
endif()
