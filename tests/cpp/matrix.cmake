if(ISTHMUS_CORE_ONLY OR NOT ISTHMUS_TESTS)
  return()
endif()
# What the tests of every type compare with. Without the sanitizers, whose checks of it took most of such a test's time; shared, with
# nothing but its own names outside, so that no template of it stands in for an instrumented one.
set(map ${CMAKE_CURRENT_SOURCE_DIR}/matrix_data.map)
add_library(test_matrix_data SHARED ${CMAKE_CURRENT_SOURCE_DIR}/matrix_data.cpp)
target_include_directories(test_matrix_data PRIVATE ${CMAKE_BINARY_DIR}/floors/base ${CMAKE_BINARY_DIR}/floors/reduce)
# The reference must not contract a product and a sum (AArch64 would).
target_compile_options(test_matrix_data PRIVATE -O2 -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${ISTHMUS_WERROR}>:-Werror>
                       -ffp-contract=off)
target_link_options(test_matrix_data PRIVATE LINKER:--version-script=${map})
set_target_properties(test_matrix_data PROPERTIES LINK_DEPENDS ${map})
