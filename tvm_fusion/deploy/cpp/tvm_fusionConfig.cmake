# find_package(tvm_fusion) in a bundle: the target tvm_fusion::tvm_fusion, and the artifact's folder in
# tvm_fusion_MODEL. Pass -DCMAKE_PREFIX_PATH=<bundle>.
get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(tvm_fusion_MODEL "${_root}/model")
if(NOT TARGET tvm_fusion::tvm_fusion)
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
  foreach(name tvm_runtime tvm_ffi)
    add_library(tvm_fusion::${name} SHARED IMPORTED)
    set_target_properties(tvm_fusion::${name} PROPERTIES IMPORTED_LOCATION "${_root}/lib/lib${name}.so")
  endforeach()
  add_library(tvm_fusion::tvm_fusion STATIC IMPORTED)
  set_target_properties(
    tvm_fusion::tvm_fusion
    PROPERTIES
      IMPORTED_LOCATION "${_root}/lib/libtvm_fusion.a"
      INTERFACE_INCLUDE_DIRECTORIES "${_root}/include"
      INTERFACE_COMPILE_FEATURES cxx_std_17
      # The runtime registers what an artifact's library asks for, although nothing else calls it;
      # DT_RPATH, unlike DT_RUNPATH, also finds what the libraries themselves need.
      INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed;-Wl,--disable-new-dtags"
      INTERFACE_LINK_LIBRARIES "tvm_fusion::tvm_runtime;tvm_fusion::tvm_ffi;Threads::Threads;${CMAKE_DL_LIBS}")
endif()
unset(_root)
