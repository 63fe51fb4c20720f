# The faces, and what the Python package `isthmus` is made of:
#   isthmus/libisthmus.so, _core*.so, _torch*.so, bin/isthmus-bench, interpose/lib*.so*, include/isthmus/isthmus.h
# Everything finds libisthmus.so next to itself, so the package may be moved.

# Where the Python environment keeps torch; empty without torch. Asked of the interpreter without PYTHONPATH: an isolated build
# (plain `pip install .`) hides the environment's own packages by it, and the backend must be built against the torch it will meet.
function(isthmus_find_torch root version)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/find_torch.py
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "cmake/find_torch.py failed; to build without the torch backend: -DISTHMUS_TORCH=OFF")
  endif()
  list(GET answer 0 found_root)
  list(GET answer 1 found_version)
  set(${root} "${found_root}" PARENT_SCOPE)
  set(${version} "${found_version}" PARENT_SCOPE)
endfunction()

if(ISTHMUS_PYTHON OR ISTHMUS_TORCH)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
endif()
if(ISTHMUS_PYTHON)
  add_subdirectory(csrc/python)
endif()
if(ISTHMUS_TORCH)
  isthmus_find_torch(ISTHMUS_TORCH_ROOT ISTHMUS_TORCH_VERSION)
  if(ISTHMUS_TORCH_ROOT STREQUAL "none")
    if(NOT ISTHMUS_TORCH STREQUAL "AUTO")
      message(FATAL_ERROR "ISTHMUS_TORCH=ON, but ${Python_EXECUTABLE} finds no torch")
    endif()
    message(STATUS "torch: not found; isthmus.torch will say so")
  else()
    message(STATUS "torch: ${ISTHMUS_TORCH_VERSION} in ${ISTHMUS_TORCH_ROOT}")
    add_subdirectory(csrc/torch)
    add_subdirectory(csrc/rehearsal/torch)
  endif()
endif()
if(ISTHMUS_BENCH AND EXISTS ${PROJECT_SOURCE_DIR}/bench/CMakeLists.txt)
  add_subdirectory(bench)
endif()

# `cmake --build . --target package_files` builds what is installed, and no tests.
add_custom_target(package_files)
foreach(file isthmus _core _torch isthmus-bench)
  if(TARGET ${file})
    add_dependencies(package_files ${file})
  endif()
endforeach()
foreach(library isthmus _core _torch)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS ${library} LIBRARY DESTINATION isthmus COMPONENT python)
  endif()
endforeach()
if(TARGET isthmus-bench)
  set_target_properties(isthmus-bench PROPERTIES INSTALL_RPATH "$ORIGIN/..")
  install(TARGETS isthmus-bench RUNTIME DESTINATION isthmus/bin COMPONENT python)
  if(SKBUILD_SCRIPTS_DIR)  # a wheel: the command of the same name
    install(PROGRAMS cmake/isthmus-bench DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
  endif()
endif()
# The simulated vendors of `isthmus rehearse`, which nothing of the product opens by itself.
add_dependencies(package_files rehearsal_all)
install(DIRECTORY ${CMAKE_BINARY_DIR}/rehearsal/ DESTINATION isthmus/rehearsal COMPONENT python FILES_MATCHING PATTERN "lib*.so*"
        PATTERN "_torch_device*.so")
# The front doors for programs of other libraries, which nothing of the product opens either.
add_dependencies(package_files interpose_all)
install(TARGETS interpose_nccl interpose_rccl interpose_hccl interpose_dlopen interpose_audit
        LIBRARY DESTINATION isthmus/interpose COMPONENT python)
set_target_properties(interpose_bridge PROPERTIES INSTALL_RPATH "$ORIGIN/..")
install(TARGETS interpose_bridge LIBRARY DESTINATION isthmus/interpose COMPONENT python)
install(FILES csrc/include/isthmus/isthmus.h DESTINATION isthmus/include/isthmus COMPONENT python)
# What a C program's build finds it by: CMake's find_package(isthmus), and pkg-config.
configure_file(cmake/installed/isthmus-config-version.cmake.in ${CMAKE_BINARY_DIR}/installed/isthmus-config-version.cmake @ONLY)
configure_file(cmake/installed/isthmus.pc.in ${CMAKE_BINARY_DIR}/installed/isthmus.pc @ONLY)
install(FILES cmake/installed/isthmus-config.cmake ${CMAKE_BINARY_DIR}/installed/isthmus-config-version.cmake
        DESTINATION isthmus/cmake COMPONENT python)
install(FILES ${CMAKE_BINARY_DIR}/installed/isthmus.pc DESTINATION isthmus/pkgconfig COMPONENT python)
