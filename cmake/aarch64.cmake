# Toolchain file: cross-build of the floors below the links (ISTHMUS_CORE_ONLY) for AArch64, and their tests under user-mode
# emulation. Debian, Ubuntu: g++-aarch64-linux-gnu qemu-user-static googletest libhwy-dev libfmt-dev libspdlog-dev.
#   cmake -S . -B build-aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DISTHMUS_CORE_ONLY=ON -DISTHMUS_TESTS=ON
#   cmake --build build-aarch64 && ctest --test-dir build-aarch64
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)

find_program(ISTHMUS_QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64)
if(NOT ISTHMUS_QEMU_AARCH64)
  message(FATAL_ERROR "qemu-aarch64-static was not found (Debian, Ubuntu: apt-get install qemu-user-static)")
endif()
set(CMAKE_CROSSCOMPILING_EMULATOR ${ISTHMUS_QEMU_AARCH64})
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)  # the emulator then needs no AArch64 system beside it

# Header-only libraries of the host. /usr/include as a whole must not be searched, so a directory holds links to these alone.
set(ISTHMUS_HOST_INCLUDE /usr/include CACHE PATH "Where the host's hwy, fmt, spdlog and nlohmann lie")
set(ISTHMUS_CROSS_INCLUDE ${CMAKE_BINARY_DIR}/cross-include)
file(MAKE_DIRECTORY ${ISTHMUS_CROSS_INCLUDE})
foreach(library hwy fmt spdlog nlohmann)
  if(EXISTS ${ISTHMUS_HOST_INCLUDE}/${library})
    file(CREATE_LINK ${ISTHMUS_HOST_INCLUDE}/${library} ${ISTHMUS_CROSS_INCLUDE}/${library} SYMBOLIC)
  endif()
endforeach()
set(CMAKE_CXX_FLAGS_INIT "-isystem ${ISTHMUS_CROSS_INCLUDE}")
set(ISTHMUS_HIGHWAY_INCLUDE ${ISTHMUS_CROSS_INCLUDE} CACHE PATH "Directory that holds hwy/highway.h")
