# find_package(isthmus): the target isthmus::isthmus. This file lies in the folder cmake/ of the installed package;
# `isthmus-config --cmakedir` says where that is.
get_filename_component(isthmus_folder "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET isthmus::isthmus)
  add_library(isthmus::isthmus SHARED IMPORTED)
  set_target_properties(isthmus::isthmus PROPERTIES IMPORTED_LOCATION "${isthmus_folder}/libisthmus.so"
                        IMPORTED_NO_SONAME ON INTERFACE_INCLUDE_DIRECTORIES "${isthmus_folder}/include")
endif()
