include(${CMAKE_SOURCE_DIR}/cmake/isa.cmake)
# Thread-sanitizer builds run kernels serially: libgomp is not instrumented.
if(OpenMP_C_FOUND AND NOT SNUG_TSAN)
    set(SNUG_OPENMP ON)
    list(APPEND LIBS OpenMP::OpenMP_C)
else()
    set(SNUG_OPENMP OFF)
    add_compile_options(-Wno-unknown-pragmas)
endif()

list(APPEND SOURCES cpu/isa.c cpu/kernels.c)
# Compiled once per instruction set; see cpu/kernels.def.
set(ISA_SOURCES)
set(TESTS cpu/vec_test.c)

snug_isa_objects(snug_kernels ${dir} ${ISA_SOURCES})
list(APPEND LIBS ${snug_kernels_OBJECTS})
