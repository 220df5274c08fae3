# Toolchain file: builds for aarch64 with Debian's cross compiler, runs under qemu-user. Libraries
# come from a folder that scripts/aarch64 fills (SNUG_AARCH64_ROOT); nothing there is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(SNUG_AARCH64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build-aarch64/root CACHE PATH "arm64 libraries")
get_filename_component(root ${SNUG_AARCH64_ROOT} ABSOLUTE)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SNUG_AARCH64_ROOT)
set(CMAKE_FIND_ROOT_PATH ${root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig)
# Shared libraries that the libraries themselves need.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${root}/usr/lib/aarch64-linux-gnu")
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES ${root}/usr/include/aarch64-linux-gnu)
