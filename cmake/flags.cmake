# Warnings are errors; float results are the same for every build type and compiler.
add_compile_options(
    -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wswitch-enum -Wstrict-prototypes
    -Wmissing-prototypes -Wcast-qual -Wwrite-strings -Wformat=2 -Wdouble-promotion
    -Wpointer-arith -Wimplicit-fallthrough -Werror
    -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-strict-aliasing
    -fvisibility=hidden)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # Vector types of 64 bytes passed between functions of one file; no other file sees them.
    add_compile_options(-Wno-psabi)
endif()
add_compile_definitions(_POSIX_C_SOURCE=200809L _DEFAULT_SOURCE _FILE_OFFSET_BITS=64)
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g")
if(SNUG_SANITIZE)
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
endif()
if(SNUG_TSAN)
    add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
    add_link_options(-fsanitize=thread)
endif()
if(SNUG_VERIFY)
    add_compile_definitions(SNUG_VERIFY=1)
else()
    add_compile_definitions(SNUG_VERIFY=0)
endif()
if(SNUG_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
