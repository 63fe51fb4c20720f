# GTest::gtest and GTest::gtest_main: the host's library, or built from the distribution's sources, as a cross build must.
set(ISTHMUS_GOOGLETEST_SOURCE /usr/src/googletest CACHE PATH "Sources of GoogleTest, used where no built library fits")
if(NOT CMAKE_CROSSCOMPILING)
  find_package(GTest QUIET)
endif()
if(NOT TARGET GTest::gtest)
  if(NOT EXISTS ${ISTHMUS_GOOGLETEST_SOURCE}/CMakeLists.txt)
    message(FATAL_ERROR "The tests need GoogleTest. Debian, Ubuntu: apt-get install libgtest-dev (its sources, for a cross "
                        "build: googletest), or set -DISTHMUS_GOOGLETEST_SOURCE=<its source directory>.")
  endif()
  set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
  set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
  add_subdirectory(${ISTHMUS_GOOGLETEST_SOURCE} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  foreach(part gtest gtest_main)
    target_compile_options(${part} PRIVATE -w)  # not our code
  endforeach()
endif()
